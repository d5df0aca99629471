//! How many prompt tokens a step may have while answers are streaming.

use std::time::Duration;

/// The weight of the newest observation.
const NEWEST: f64 = 0.3;
/// Prompts go on with so many tokens a step, however slow the machine.
const AT_LEAST: usize = 8;

/// Knows how long steps took.
pub(crate) struct Pace {
    max_step: f64,
    /// Seconds of a prompt token.
    prompt_row: Option<f64>,
    /// Seconds of a step without prompt tokens.
    decode_step: Option<f64>,
}

impl Pace {
    pub(crate) fn new(max_step: Duration) -> Self {
        Self { max_step: max_step.as_secs_f64(), prompt_row: None, decode_step: None }
    }

    /// Prompt tokens of the next step: at most `most`, fewer where others would wait too long.
    pub(crate) fn prompt_rows(&self, decoding: bool, most: usize) -> usize {
        let Some(row) = self.prompt_row.filter(|_| decoding) else { return most };
        let left = self.max_step - self.decode_step.unwrap_or(0.0);
        ((left / row.max(1e-9)) as usize).max(AT_LEAST).min(most)
    }

    /// A step took so long.
    pub(crate) fn observe(&mut self, seconds: f64, prompt_rows: usize) {
        let (known, seen) = match prompt_rows {
            0 => (&mut self.decode_step, seconds),
            rows => {
                let decode = self.decode_step.unwrap_or(0.0).min(seconds);
                (&mut self.prompt_row, (seconds - decode) / rows as f64)
            }
        };
        *known = Some(known.map_or(seen, |known| known + NEWEST * (seen - known)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_shrink_until_a_step_keeps_to_its_time() {
        let mut pace = Pace::new(Duration::from_millis(100));
        assert_eq!(pace.prompt_rows(true, 128), 128);
        pace.observe(0.020, 0);
        pace.observe(0.020 + 128.0 * 0.002, 128);
        assert_eq!(pace.prompt_rows(true, 128), 40);
        assert_eq!(pace.prompt_rows(false, 128), 128);
    }

    #[test]
    fn prompts_always_go_on() {
        let mut pace = Pace::new(Duration::from_millis(1));
        pace.observe(1.0, 0);
        pace.observe(9.0, 4);
        assert_eq!(pace.prompt_rows(true, 128), AT_LEAST);
        assert_eq!(pace.prompt_rows(true, 3), 3);
    }
}
