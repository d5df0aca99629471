//! Arrays of metadata values, left in the file until they are needed.

use std::borrow::Cow;
use std::ops::Range;

use crate::cursor::Cursor;
use crate::error::{Error, Result};
use crate::metadata::value::{Value, ValueType, encode_string, read_value};
use crate::source::Source;

/// The deepest nesting that is read; real files nest once or twice.
const DEPTH_LIMIT: usize = 8;

/// The longest string in an array; tokens take some hundred bytes.
const ELEMENT_LIMIT: u64 = 1 << 20;

/// An array of metadata values of one type, decoded when asked for.
///
/// Of a file it holds the place in the map, not the elements. That the elements can be decoded
/// was checked when the file was opened; decoding checks again, as the file may have changed.
#[derive(Clone)]
pub struct Array {
    element: ValueType,
    len: usize,
    source: Source,
    range: Range<usize>,
}

/// Numbers that arrays can be made of.
pub trait Number: Copy + private::Sealed {
    /// The type in the file.
    const TYPE: ValueType;
    /// Appends the number's little-endian bytes.
    fn append(self, out: &mut Vec<u8>);
}

mod private {
    /// Only this crate says what a number is.
    pub trait Sealed {}
}

macro_rules! number {
    ($($type:ty: $name:ident),*) => {$(
        impl private::Sealed for $type {}
        impl Number for $type {
            const TYPE: ValueType = ValueType::$name;
            fn append(self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
        }
    )*};
}
number!(u8: U8, i8: I8, u16: U16, i16: I16, u32: U32, i32: I32, f32: F32);
number!(u64: U64, i64: I64, f64: F64);

impl Array {
    /// An array of strings.
    pub fn of_strings<S: AsRef<str>>(strings: impl IntoIterator<Item = S>) -> Array {
        let mut bytes = Vec::new();
        let mut len = 0;
        for string in strings {
            encode_string(string.as_ref(), &mut bytes);
            len += 1;
        }
        Array::owned(ValueType::String, len, bytes)
    }

    /// An array of numbers.
    pub fn of_numbers<T: Number>(numbers: &[T]) -> Array {
        let mut bytes = Vec::with_capacity(size_of_val(numbers));
        for number in numbers {
            number.append(&mut bytes);
        }
        Array::owned(T::TYPE, numbers.len(), bytes)
    }

    /// An array of truth values.
    #[doc(hidden)] // for tests
    pub fn of_bools(bools: &[bool]) -> Array {
        Array::owned(ValueType::Bool, bools.len(), bools.iter().map(|&b| u8::from(b)).collect())
    }

    /// An array of arrays.
    #[doc(hidden)] // for tests
    pub fn of_arrays(arrays: &[Array]) -> Array {
        let mut bytes = Vec::new();
        for array in arrays {
            array.encode(&mut bytes);
        }
        Array::owned(ValueType::Array, arrays.len(), bytes)
    }

    fn owned(element: ValueType, len: usize, bytes: Vec<u8>) -> Array {
        let range = 0..bytes.len();
        Array { element, len, source: Source::memory("array", Cow::Owned(bytes)), range }
    }

    /// The array whose elements lie in `range` of `source`, already checked.
    pub(crate) fn mapped(
        element: ValueType,
        len: usize,
        source: &Source,
        range: Range<usize>,
    ) -> Array {
        Array { element, len, source: source.clone(), range }
    }

    /// Reads element type and length.
    pub(crate) fn read_head(cursor: &mut Cursor<'_>, what: &str) -> Result<(ValueType, usize)> {
        let element = ValueType::read(cursor, what)?;
        // The least that an element takes: a string its length, an array its type and length.
        let least = element.bytes().unwrap_or(if element == ValueType::String { 8 } else { 12 });
        let len = cursor.count(&format!("{what}: array length"), least as u64)?;
        Ok((element, len))
    }

    /// The type of the elements.
    pub fn element(&self) -> ValueType {
        self.element
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as strings, borrowed from the file.
    ///
    /// # Errors
    /// When the elements are not strings, or the file was changed since it was opened.
    pub fn strings(&self) -> Result<Vec<&str>> {
        let mut cursor = self.cursor();
        if self.element != ValueType::String {
            return Err(self.mismatch("strings"));
        }
        (0..self.len).map(|_| cursor.string("string of an array", ELEMENT_LIMIT)).collect()
    }

    /// The elements as integers.
    ///
    /// # Errors
    /// When the elements are not integers, or one is above 2⁶³ − 1.
    pub fn integers(&self) -> Result<Vec<i64>> {
        self.decode("integers", Value::as_i64)
    }

    /// The elements as numbers, rounded to double precision.
    ///
    /// # Errors
    /// When the elements are not numbers.
    pub fn floats(&self) -> Result<Vec<f64>> {
        self.decode("numbers", Value::as_f64)
    }

    /// The elements one by one, arrays among them.
    ///
    /// # Errors
    /// When the file was changed since it was opened.
    pub fn values(&self) -> Result<Vec<Value>> {
        self.decode("values", |value| Some(value.clone()))
    }

    fn decode<T>(&self, expected: &str, view: impl Fn(&Value) -> Option<T>) -> Result<Vec<T>> {
        let mut cursor = self.cursor();
        let element = |_| {
            let value = read_value(&mut cursor, &self.source, self.element, "array element")?;
            view(&value).ok_or_else(|| self.mismatch(expected))
        };
        (0..self.len).map(element).collect()
    }

    /// The elements as they lie in the file.
    fn bytes(&self) -> &[u8] {
        &self.source.bytes()[self.range.clone()]
    }

    fn mismatch(&self, expected: &str) -> Error {
        let got = format!("{} of type {}", self.len, self.element.name());
        Error::invalid(self.source.path(), "array", got, expected)
    }

    fn cursor(&self) -> Cursor<'_> {
        Cursor::new(self.source.path(), &self.source.bytes()[..self.range.end], self.range.start)
    }

    /// Appends the array as a GGUF file holds it: element type, length, elements.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend((self.element as u32).to_le_bytes());
        out.extend((self.len as u64).to_le_bytes());
        out.extend(self.bytes());
    }
}

impl PartialEq for Array {
    fn eq(&self, other: &Array) -> bool {
        (self.element, self.len) == (other.element, other.len) && self.bytes() == other.bytes()
    }
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Array({} × {})", self.len, self.element.name())
    }
}

/// Moves the cursor over an array's elements, checking each. Nested arrays are kept on a list of
/// counters of bounded depth, not on the stack.
pub(crate) fn skip_array(
    cursor: &mut Cursor<'_>,
    element: ValueType,
    len: usize,
    what: &str,
) -> Result<()> {
    let mut open = vec![(element, len)];
    while let Some((element, left)) = open.last_mut() {
        if *left == 0 {
            open.pop();
        } else if *element == ValueType::Array {
            *left -= 1;
            let head = Array::read_head(cursor, what)?;
            open.push(head);
            if open.len() > DEPTH_LIMIT {
                let expected = format!("at most {DEPTH_LIMIT}");
                let got = format!("more than {DEPTH_LIMIT}");
                let what = format!("{what}: depth of nested arrays");
                return Err(Error::invalid(cursor.file(), what, got, expected));
            }
        } else {
            skip_elements(cursor, *element, *left, what)?;
            *left = 0;
        }
    }
    Ok(())
}

/// Moves the cursor over elements that are not arrays.
fn skip_elements(
    cursor: &mut Cursor<'_>,
    element: ValueType,
    len: usize,
    what: &str,
) -> Result<()> {
    match element.bytes() {
        None => {
            for _ in 0..len {
                cursor.string(what, ELEMENT_LIMIT)?;
            }
        }
        Some(size) => {
            let bytes = cursor.take((size as u64).saturating_mul(len as u64), what)?;
            if element == ValueType::Bool
                && let Some(other) = bytes.iter().find(|&&byte| byte > 1)
            {
                let got = format!("bool {other}");
                return Err(Error::invalid(cursor.file(), what, got, "0 or 1"));
            }
        }
    }
    Ok(())
}
