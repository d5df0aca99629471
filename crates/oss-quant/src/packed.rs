//! The packed formats: one row each, bearing the name of the element type that it is packed from.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::formats::Blocks;
use crate::unpack::Visitor;

macro_rules! packed_formats {
    ($dollar:tt codes { $($block:ident $block_file:ident,)* }
     floats { $($float:ident $float_file:ident,)* }) => {
        /// The format of a packed matrix.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Packed {
            $(#[doc = concat!("From [`Dtype::", stringify!($block), "`].")] $block,)*
            $(#[doc = concat!("From [`Dtype::", stringify!($float), "`].")] $float,)*
        }

        impl Packed {
            /// Every packed format.
            pub fn all() -> impl Iterator<Item = Packed> {
                [$(Packed::$block,)* $(Packed::$float,)*].into_iter()
            }

            /// The element type that it is packed from.
            pub fn dtype(self) -> Dtype {
                match self {
                    $(Packed::$block => Dtype::$block,)*
                    $(Packed::$float => Dtype::$float,)*
                }
            }

            /// Whether it holds floating-point numbers, not codes.
            #[must_use]
            pub const fn is_float(self) -> bool {
                matches!(self, $(Packed::$float)|*)
            }
        }

        /// Names a format's type (as `$B` if it has codes, as `$F` if it has floats) in an
        /// expression.
        macro_rules! with_format {
            ($dollar packed:expr, $dollar B:ident => $dollar codes:expr,
             $dollar F:ident => $dollar floats:expr) => {
                match $dollar packed {
                    $($crate::packed::Packed::$block => {
                        type $dollar B = $crate::formats::$block_file::$block;
                        $dollar codes
                    })*
                    $($crate::packed::Packed::$float => {
                        type $dollar F = $crate::formats::$float_file::$float;
                        $dollar floats
                    })*
                }
            };
        }
    };
}

packed_formats! { $
    codes {
        Mxfp4 mxfp4,
        Q4_0 q4_0,
        Q4_1 q4_1,
        Q5_0 q5_0,
        Q5_1 q5_1,
        Q8_0 q8_0,
        Q2K q2_k,
        Q3K q3_k,
        Q4K q4_k,
        Q5K q5_k,
        Q6K q6_k,
        Iq4Nl iq4_nl,
    }
    floats {
        F32 f32,
        F16 f16,
        Bf16 bf16,
    }
}

impl Packed {
    /// The packed format of an element type.
    ///
    /// # Errors
    /// [`Error::NotAWeight`].
    pub fn for_dtype(dtype: Dtype) -> Result<Packed> {
        Packed::all().find(|packed| packed.dtype() == dtype).ok_or(Error::NotAWeight { got: dtype })
    }

    /// Calls the visitor with the type that unpacks this format.
    #[inline(always)]
    pub fn visit<V: Visitor>(self, visitor: V) -> V::Output {
        with_format!(self,
            B => visitor.codes::<<B as Blocks>::Unpacked>(),
            F => visitor.floats::<F>())
    }
}
