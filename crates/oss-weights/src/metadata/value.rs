//! One metadata value and its bytes in a GGUF file.

use crate::cursor::Cursor;
use crate::error::{Error, Result, shown};
use crate::metadata::array::{Array, skip_array};
use crate::source::Source;

/// The longest string value that is read; chat templates take some ten kilobytes.
const STRING_LIMIT: u64 = 64 << 20;

/// The type of a metadata value. The discriminants are GGUF's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// Unsigned byte.
    U8 = 0,
    /// Signed byte.
    I8 = 1,
    /// Unsigned 16-bit integer.
    U16 = 2,
    /// Signed 16-bit integer.
    I16 = 3,
    /// Unsigned 32-bit integer.
    U32 = 4,
    /// Signed 32-bit integer.
    I32 = 5,
    /// Single precision.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// UTF-8 with a 64-bit length.
    String = 8,
    /// Elements of one type, themselves arrays perhaps.
    Array = 9,
    /// Unsigned 64-bit integer.
    U64 = 10,
    /// Signed 64-bit integer.
    I64 = 11,
    /// Double precision.
    F64 = 12,
}

impl ValueType {
    const ALL: [ValueType; 13] = [
        ValueType::U8,
        ValueType::I8,
        ValueType::U16,
        ValueType::I16,
        ValueType::U32,
        ValueType::I32,
        ValueType::F32,
        ValueType::Bool,
        ValueType::String,
        ValueType::Array,
        ValueType::U64,
        ValueType::I64,
        ValueType::F64,
    ];

    /// The type as it is written in messages.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::U8 => "u8",
            ValueType::I8 => "i8",
            ValueType::U16 => "u16",
            ValueType::I16 => "i16",
            ValueType::U32 => "u32",
            ValueType::I32 => "i32",
            ValueType::F32 => "f32",
            ValueType::Bool => "bool",
            ValueType::String => "string",
            ValueType::Array => "array",
            ValueType::U64 => "u64",
            ValueType::I64 => "i64",
            ValueType::F64 => "f64",
        }
    }

    /// Whether values are integers.
    pub fn is_integer(self) -> bool {
        use ValueType::{I8, I16, I32, I64, U8, U16, U32, U64};
        matches!(self, U8 | I8 | U16 | I16 | U32 | I32 | U64 | I64)
    }

    /// Whether values are integers or floating-point numbers.
    pub fn is_number(self) -> bool {
        self.is_integer() || matches!(self, ValueType::F32 | ValueType::F64)
    }

    /// Bytes of one value; `None` for strings and arrays.
    pub(crate) fn bytes(self) -> Option<usize> {
        match self {
            ValueType::U8 | ValueType::I8 | ValueType::Bool => Some(1),
            ValueType::U16 | ValueType::I16 => Some(2),
            ValueType::U32 | ValueType::I32 | ValueType::F32 => Some(4),
            ValueType::U64 | ValueType::I64 | ValueType::F64 => Some(8),
            ValueType::String | ValueType::Array => None,
        }
    }

    /// Reads a type's number.
    pub(crate) fn read(cursor: &mut Cursor<'_>, what: &str) -> Result<ValueType> {
        let id = cursor.u32(what)?;
        ValueType::ALL.get(id as usize).copied().ok_or_else(|| {
            Error::invalid(cursor.file(), format!("{what}: value type"), id, "0 to 12")
        })
    }
}

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the variants are those of ValueType")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// The value's type.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => ValueType::U8,
            Value::I8(_) => ValueType::I8,
            Value::U16(_) => ValueType::U16,
            Value::I16(_) => ValueType::I16,
            Value::U32(_) => ValueType::U32,
            Value::I32(_) => ValueType::I32,
            Value::F32(_) => ValueType::F32,
            Value::Bool(_) => ValueType::Bool,
            Value::String(_) => ValueType::String,
            Value::Array(_) => ValueType::Array,
            Value::U64(_) => ValueType::U64,
            Value::I64(_) => ValueType::I64,
            Value::F64(_) => ValueType::F64,
        }
    }

    /// The value when it is an integer from 0 to 2⁶⁴ − 1.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U64(value) => Some(value),
            _ => self.as_i64().and_then(|value| u64::try_from(value).ok()),
        }
    }

    /// The value when it is an integer from −2⁶³ to 2⁶³ − 1.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::U8(value) => Some(value.into()),
            Value::I8(value) => Some(value.into()),
            Value::U16(value) => Some(value.into()),
            Value::I16(value) => Some(value.into()),
            Value::U32(value) => Some(value.into()),
            Value::I32(value) => Some(value.into()),
            Value::U64(value) => i64::try_from(value).ok(),
            Value::I64(value) => Some(value),
            _ => None,
        }
    }

    /// The value when it is a number, rounded to double precision.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(value) => Some(value.into()),
            Value::F64(value) => Some(value),
            Value::U64(value) => Some(value as f64),
            _ => self.as_i64().map(|value| value as f64),
        }
    }

    /// The value when it is a truth value.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The value when it is a string.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(value) => Some(value),
            _ => None,
        }
    }

    /// The value when it is an array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Value::Array(value) => Some(value),
            _ => None,
        }
    }

    /// Type and value in one short line, for messages and listings.
    pub fn describe(&self) -> String {
        let name = self.value_type().name();
        match self {
            Value::U8(value) => format!("{name} {value}"),
            Value::I8(value) => format!("{name} {value}"),
            Value::U16(value) => format!("{name} {value}"),
            Value::I16(value) => format!("{name} {value}"),
            Value::U32(value) => format!("{name} {value}"),
            Value::I32(value) => format!("{name} {value}"),
            Value::U64(value) => format!("{name} {value}"),
            Value::I64(value) => format!("{name} {value}"),
            Value::F32(value) => format!("{name} {value}"),
            Value::F64(value) => format!("{name} {value}"),
            Value::Bool(value) => format!("{name} {value}"),
            Value::String(value) => format!("{name} \"{}\"", shown(value)),
            Value::Array(array) => format!("array of {} {}", array.len(), array.element().name()),
        }
    }

    /// Appends the value as a GGUF file holds it: number of the type, then the value.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend((self.value_type() as u32).to_le_bytes());
        match self {
            Value::U8(value) => out.push(*value),
            Value::I8(value) => out.extend(value.to_le_bytes()),
            Value::U16(value) => out.extend(value.to_le_bytes()),
            Value::I16(value) => out.extend(value.to_le_bytes()),
            Value::U32(value) => out.extend(value.to_le_bytes()),
            Value::I32(value) => out.extend(value.to_le_bytes()),
            Value::U64(value) => out.extend(value.to_le_bytes()),
            Value::I64(value) => out.extend(value.to_le_bytes()),
            Value::F32(value) => out.extend(value.to_le_bytes()),
            Value::F64(value) => out.extend(value.to_le_bytes()),
            Value::Bool(value) => out.push(u8::from(*value)),
            Value::String(value) => encode_string(value, out),
            Value::Array(array) => array.encode(out),
        }
    }
}

/// Appends a string as a GGUF file holds it.
pub(crate) fn encode_string(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Reads a value of `kind` at the cursor. `what` names it in errors.
pub(crate) fn read_value(
    cursor: &mut Cursor<'_>,
    source: &Source,
    kind: ValueType,
    what: &str,
) -> Result<Value> {
    Ok(match kind {
        ValueType::U8 => Value::U8(u8::from_le_bytes(cursor.array(what)?)),
        ValueType::I8 => Value::I8(i8::from_le_bytes(cursor.array(what)?)),
        ValueType::U16 => Value::U16(u16::from_le_bytes(cursor.array(what)?)),
        ValueType::I16 => Value::I16(i16::from_le_bytes(cursor.array(what)?)),
        ValueType::U32 => Value::U32(cursor.u32(what)?),
        ValueType::I32 => Value::I32(i32::from_le_bytes(cursor.array(what)?)),
        ValueType::F32 => Value::F32(f32::from_le_bytes(cursor.array(what)?)),
        ValueType::Bool => Value::Bool(read_bool(cursor, what)?),
        ValueType::String => Value::String(cursor.string(what, STRING_LIMIT)?.to_string()),
        ValueType::Array => {
            let (element, len) = Array::read_head(cursor, what)?;
            let start = cursor.position();
            skip_array(cursor, element, len, what)?;
            Value::Array(Array::mapped(element, len, source, start..cursor.position()))
        }
        ValueType::U64 => Value::U64(cursor.u64(what)?),
        ValueType::I64 => Value::I64(i64::from_le_bytes(cursor.array(what)?)),
        ValueType::F64 => Value::F64(f64::from_le_bytes(cursor.array(what)?)),
    })
}

fn read_bool(cursor: &mut Cursor<'_>, what: &str) -> Result<bool> {
    match cursor.array(what)? {
        [0] => Ok(false),
        [1] => Ok(true),
        [other] => Err(Error::invalid(cursor.file(), what, format!("bool {other}"), "0 or 1")),
    }
}

macro_rules! value_from {
    ($($variant:ident: $type:ty),*) => {$(
        impl From<$type> for Value {
            fn from(value: $type) -> Value {
                Value::$variant(value)
            }
        }
    )*};
}
value_from!(U8: u8, I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, F32: f32, Bool: bool);
value_from!(String: String, Array: Array, U64: u64, I64: i64, F64: f64);

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::String(value.to_string())
    }
}
