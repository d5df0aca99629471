//! GGUF's numbers of element types.

use oss_quant::Dtype;

/// Number and type, for the types that tensors may have here.
const TYPES: [(u32, Dtype); 20] = [
    (0, Dtype::F32),
    (1, Dtype::F16),
    (2, Dtype::Q4_0),
    (3, Dtype::Q4_1),
    (6, Dtype::Q5_0),
    (7, Dtype::Q5_1),
    (8, Dtype::Q8_0),
    (10, Dtype::Q2K),
    (11, Dtype::Q3K),
    (12, Dtype::Q4K),
    (13, Dtype::Q5K),
    (14, Dtype::Q6K),
    (20, Dtype::Iq4Nl),
    (24, Dtype::I8),
    (25, Dtype::I16),
    (26, Dtype::I32),
    (27, Dtype::I64),
    (28, Dtype::F64),
    (30, Dtype::Bf16),
    (39, Dtype::Mxfp4),
];

/// Number and name of the types that GGUF has and this project has not.
const UNSUPPORTED: [(u32, &str); 23] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (40, "NVFP4"),
    (41, "Q1_0"),
    (42, "Q2_0"),
];

/// The type of a number.
pub(crate) fn dtype(id: u32) -> Option<Dtype> {
    TYPES.iter().find(|(number, _)| *number == id).map(|(_, dtype)| *dtype)
}

/// The number of a type; `None` for types that GGUF cannot hold.
pub(crate) fn id(dtype: Dtype) -> Option<u32> {
    TYPES.iter().find(|(_, other)| *other == dtype).map(|(number, _)| *number)
}

/// A number that is no supported type, with its name where it has one.
pub(crate) fn describe(id: u32) -> String {
    match UNSUPPORTED.iter().find(|(number, _)| *number == id) {
        Some((_, name)) => format!("{id} ({name})"),
        None => format!("{id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_and_no_type_stands_twice() {
        for (number, dtype_of) in TYPES {
            assert_eq!(dtype(number), Some(dtype_of));
            assert_eq!(id(dtype_of), Some(number));
            assert_eq!(describe(number), number.to_string(), "also in UNSUPPORTED");
        }
    }
}
