//! Which instruction sets there are: one row each, for detection and compilation alike.

use crate::Kernel;
use std::fmt;

/// Operations of [`Simd`](crate::Simd) as one expression of intrinsics each, for the files named
/// after an instruction set.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! ops {
    ($(
        fn $name:ident $(<const $n:ident: u32>)? ($($arg:ident: $t:ty),*) $(-> $r:ty)? = $e:expr;
    )*) => {$(
        #[inline(always)]
        #[allow(unused_unsafe, reason = "some of the operations are safe")]
        fn $name $(<const $n: u32>)? (self, $($arg: $t),*) $(-> $r)? {
            // SAFETY: the features are there, by `new`'s contract; pointers come from references
            // to arrays of the size that the instruction touches.
            unsafe { $e }
        }
    )*};
}

/// Defines `add_products` for one size of vectors.
#[cfg(target_arch = "x86_64")]
macro_rules! add_products {
    ($vector:ty, $registers:ident, $feature:literal $(, $pure:ident)?) => {
        /// Adds the products of unsigned and signed bytes to pairs of 16-bit sums. As one piece:
        /// from intrinsics, the compiler would reorder a tile's sums and lay half of them on the
        /// stack. With sixteen registers it still does where the piece is pure.
        ///
        /// # Safety
        /// The processor must have the feature.
        #[inline]
        #[target_feature(enable = $feature)]
        unsafe fn add_products(mut sum: $vector, codes: $vector, quads: $vector) -> $vector {
            let _products: $vector;
            // SAFETY: it does what it says, to these registers only.
            unsafe {
                std::arch::asm!(
                    "vpmaddubsw {products}, {codes}, {quads}",
                    "vpaddw {sum}, {sum}, {products}",
                    sum = inout($registers) sum,
                    codes = in($registers) codes,
                    quads = in($registers) quads,
                    products = out($registers) _products,
                    options($($pure,)? nomem, nostack, preserves_flags),
                );
            }
            sum
        }
    };
}

/// Transposes the lanes of each 128 bits of four registers.
#[cfg(target_arch = "x86_64")]
macro_rules! quads {
    ($low:ident, $high:ident, $shuffle:ident, $a:expr, $b:expr, $c:expr, $d:expr) => {{
        let (ab, cd) = ($low($a, $b), $low($c, $d));
        let (ab_high, cd_high) = ($high($a, $b), $high($c, $d));
        [
            $shuffle::<0x44>(ab, cd),
            $shuffle::<0xee>(ab, cd),
            $shuffle::<0x44>(ab_high, cd_high),
            $shuffle::<0xee>(ab_high, cd_high),
        ]
    }};
}

/// What [`Simd::dot_start`] stands for: what the code of zero adds, `sums` being two sums of codes,
/// one in each half of the bits.
const fn start(zero: u8, sums: i32) -> i32 {
    -(zero as i32) * ((sums >> 16) + sums as i16 as i32)
}

mod prefetch_policy;
pub(crate) mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

pub use prefetch_policy::{CacheLevel, PrefetchPolicy};

/// An instruction set that this processor has: the token that every kernel call takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isa(Level);

/// The names in [`Isa::ALL_NAMES`] that [`Isa::from_name`] did not find, or that are not here.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// No instruction set has this name.
    Unknown {
        /// The name asked for.
        got: String,
    },
    /// The processor lacks it.
    Missing {
        /// The name asked for.
        got: &'static str,
        /// The names of what the processor has.
        available: Vec<&'static str>,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { got } => {
                let all = Isa::ALL_NAMES.join(", ");
                write!(f, "instruction set: got {got:?}, expected one of {all}")
            }
            Self::Missing { got, available } => {
                let available = available.join(", ");
                write!(f, "instruction set {got} is not on this processor, which has {available}")
            }
        }
    }
}

impl std::error::Error for Error {}

macro_rules! isa_table {
    ($(
        $(#[$cfg:meta])*
        $level:ident, $name:literal, $make:expr,
            $trampoline:ident $(for $extension:ident or $plain:tt)?, [$($feature:tt),*];
    )*) => {
        /// In ascending order of preference, but see [`Isa::available`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        enum Level {
            $($(#[$cfg])* $level,)*
        }

        impl Isa {
            /// Every name that [`Isa::from_name`] knows on this architecture, best last.
            pub const ALL_NAMES: &[&str] = &[$($(#[$cfg])* $name,)*];

            /// What this processor has, in the order of the table.
            fn found() -> Vec<Self> {
                let mut found = Vec::new();
                $($(#[$cfg])* if true $(&& has!($feature))* { found.push(Self(Level::$level)); })*
                found
            }

            /// The name, as in `OSS_ISA`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self.0 { $($(#[$cfg])* Level::$level => $name,)* }
            }

            /// Runs a kernel compiled for this instruction set.
            #[inline]
            pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
                match self.0 {
                    $($(#[$cfg])* Level::$level => {
                        #[expect(unsafe_code, reason = "calls a function with target features")]
                        // SAFETY: an `Isa` of this level exists only if `available` found every
                        // feature of the row.
                        unsafe { choose!(K, kernel, $trampoline $(for $extension or $plain)?) }
                    })*
                }
            }
        }

        /// Each in a module of its own: the compiler compiles what a module's functions are
        /// instantiated with in one piece, and several pieces beside each other.
        mod trampolines {$(
            $(#[$cfg])*
            pub(super) mod $trampoline {
                use crate::Kernel;
                #[allow(unused_imports, reason = "one of the modules is enough for each row")]
                use crate::isa::*;

                $(#[target_feature(enable = $feature)])*
                #[inline(never)]
                #[expect(unsafe_code, reason = "makes the token that proves the features")]
                pub(in crate::isa) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
                    #[allow(unused_unsafe, reason = "the scalar token is safe to make")]
                    // SAFETY: this function has just the features of the row.
                    kernel.run(unsafe { $make })
                }
            }
        )*}
    };
}

/// A kernel without a set's extension is compiled for the set that has all but this.
macro_rules! choose {
    ($kernels:ident, $kernel:ident, $trampoline:ident) => {
        trampolines::$trampoline::run($kernel)
    };
    ($kernels:ident, $kernel:ident, $trampoline:ident for $extension:ident or $plain:ident) => {
        if const { matches!($kernels::EXTENSION, crate::Extension::$extension) } {
            trampolines::$trampoline::run($kernel)
        } else {
            trampolines::$plain::run($kernel)
        }
    };
    ($kernels:ident, $kernel:ident, $trampoline:ident for $extension:ident or ($($plain:tt)*)) => {
        if const { matches!($kernels::EXTENSION, crate::Extension::$extension) } {
            trampolines::$trampoline::run($kernel)
        } else {
            choose!($kernels, $kernel, $($plain)*)
        }
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! has {
    ($feature:tt) => {
        is_x86_feature_detected!($feature)
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! has {
    ($feature:tt) => {
        std::arch::is_aarch64_feature_detected!($feature)
    };
}

isa_table! {
    Scalar, "scalar", scalar::Scalar::new(), scalar, [];
    #[cfg(target_arch = "x86_64")]
    Avx2, "avx2", avx2::Avx2::<false>::new(), avx2, ["avx2", "fma", "f16c"];
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni, "avx2vnni", avx2::Avx2::<true>::new(), avx2_vnni for Bytes or avx2,
        ["avx2", "fma", "f16c", "avxvnni"];
    #[cfg(target_arch = "x86_64")]
    Avx512, "avx512", avx512::Avx512::<false, false>::new(), avx512,
        ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"];
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni, "avx512vnni", avx512::Avx512::<true, false>::new(),
        avx512_vnni for Bytes or avx512,
        ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni",
         "avx512vbmi"];
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16, "avx512bf16", avx512::Avx512::<true, true>::new(),
        avx512_bf16 for Bf16 or (avx512_vnni for Bytes or avx512),
        ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni",
         "avx512vbmi", "avx512bf16"];
    #[cfg(target_arch = "aarch64")]
    Neon, "neon", neon::Neon::<false>::new(), neon, ["neon"];
    #[cfg(target_arch = "aarch64")]
    NeonDot, "neondot", neon::Neon::<true>::new(), neon_dot for Bytes or neon, ["neon", "dotprod"];
}

impl Isa {
    /// What this processor has, best last; `scalar` is always there.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut found = Self::found();
        // Other makers' processors (measured: Granite Rapids) add products of bf16 more slowly than
        // those of single precision.
        #[cfg(target_arch = "x86_64")]
        if prefetch_policy::amd_version().is_none()
            && found.last() == Some(&Self(Level::Avx512Bf16))
        {
            let last = found.len() - 1;
            found.swap(last - 1, last);
        }
        found
    }

    /// The best that this processor has, or what the environment variable `OSS_ISA` names.
    ///
    /// # Errors
    /// When `OSS_ISA` names an instruction set that is unknown or not here.
    pub fn detect() -> Result<Self, Error> {
        match std::env::var_os("OSS_ISA") {
            Some(name) if !name.is_empty() => Self::from_name(&name.to_string_lossy()),
            _ => Ok(*Self::available().last().expect("scalar is always there")),
        }
    }

    /// The instruction set called `name`.
    ///
    /// # Errors
    /// When the name is unknown or the processor lacks it.
    pub fn from_name(name: &str) -> Result<Self, Error> {
        let Some(known) = Self::ALL_NAMES.iter().find(|known| **known == name) else {
            return Err(Error::Unknown { got: name.to_owned() });
        };
        let available = Self::available();
        available.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| Error::Missing {
            got: known,
            available: available.iter().map(|isa| isa.name()).collect(),
        })
    }

    /// The portable instruction set.
    #[must_use]
    pub const fn scalar() -> Self {
        Self(Level::Scalar)
    }
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
