//! Printing that ends the program quietly when nobody reads on, as in `inspect | head`.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stdout};
use std::process::exit;

/// Prints to standard output at once, see [`out!`](crate::out).
///
/// A reader who has gone ends the program without a word, as the signal would that Rust programs
/// ignore; any other failure ends it with a message.
pub fn print(text: Arguments<'_>) {
    let mut stdout = stdout().lock();
    let Err(error) = stdout.write_fmt(text).and_then(|()| stdout.flush()) else { return };
    if error.kind() != ErrorKind::BrokenPipe {
        eprintln!("error: cannot print: {error}");
        exit(1);
    }
    exit(0);
}

/// Prints at once, as `print!` and a flush; ends the program when the reader has gone.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => { $crate::print(::std::format_args!($($text)*)) };
}

/// Prints a line at once, as [`out!`].
#[macro_export]
macro_rules! outln {
    () => { $crate::out!("\n") };
    ($($text:tt)*) => {
        $crate::out!("{}\n", ::std::format_args!($($text)*))
    };
}
