//! Lists of numbers as Linux writes them: `0-3,8,10-11`.

/// The numbers of `text`, ascending, all below `limit`; none when it is not such a list.
pub(super) fn parse(text: &str, limit: usize) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for item in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last >= limit || numbers.last().is_some_and(|&before| before >= first) {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn lists_of_ranges_and_single_numbers_are_read() {
        assert_eq!(parse("0-3,8,10-11", 12), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse("", 1), Some(vec![]));
    }

    #[test]
    fn what_is_no_ascending_list_is_refused() {
        for text in ["a", "3-1", "0,0", "1,0", "0-", "-1", "0-99999999999", "0,,1", "12"] {
            assert_eq!(parse(text, 12), None, "{text}");
        }
    }
}
