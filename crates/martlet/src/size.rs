//! Large numbers for people.

/// Bytes in powers of 1024.
pub fn bytes(n: u64) -> String {
    scaled(n, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// A number of weights, in powers of 1000.
pub fn count(n: u64) -> String {
    scaled(n, 1000.0, &["", "K", "M", "G", "T"])
}

fn scaled(n: u64, base: f64, units: &[&str]) -> String {
    let mut value = n as f64;
    let mut unit = 0;
    while value >= base && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    let digits = if unit == 0 { 0 } else { 2 };
    format!("{value:.digits$} {}", units[unit]).trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_are_short() {
        assert_eq!((bytes(1023), bytes(1536)), ("1023 B".to_string(), "1.50 KiB".to_string()));
        assert_eq!((count(999), count(22_700_000)), ("999".to_string(), "22.70 M".to_string()));
    }
}
