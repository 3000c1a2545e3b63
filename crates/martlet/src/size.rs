//! Large numbers for people.

/// Bytes in powers of 1024.
pub fn bytes(n: u64) -> String {
    scaled(n, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"])
}

/// A number of weights, in powers of 1000.
pub fn count(n: u64) -> String {
    scaled(n, 1000.0, &["", "K", "M", "G", "T"])
}

/// Bytes a second, in powers of 1000.
pub fn speed(n: u64) -> String {
    scaled(n, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

/// Units of [`parse`], in lower case.
const UNITS: [(&str, u64); 13] = [
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// Reads bytes such as 12GiB, 8G, 800MiB or 1.5 GB. Only 0 needs no unit: a bare number is most often a mistake.
pub fn parse(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim().to_ascii_lowercase());
    let number: f64 = number.parse().map_err(|_| "a size is expected, such as 12GiB or 800MiB".to_string())?;
    if unit.is_empty() {
        return if number == 0.0 { Ok(0) } else { Err(format!("the unit is missing: {number}GiB? {number}MiB?")) };
    }
    let known = UNITS.iter().find(|(name, _)| *name == unit);
    let (_, factor) = known.ok_or_else(|| format!("\"{unit}\" is no unit; known are B, KiB, MiB, GiB and TiB"))?;
    let bytes = number * *factor as f64;
    if bytes >= u64::MAX as f64 { Err("it is too large".to_string()) } else { Ok(bytes as u64) }
}

/// Reads bytes a second such as 1.5GB/s, 800MiB/s or 2G.
pub fn parse_speed(text: &str) -> Result<u64, String> {
    let size = text.strip_suffix("/s").unwrap_or(text).trim_end();
    match parse(size).map_err(|e| format!("{e} (a speed is expected, such as 1.5GB/s)"))? {
        0 => Err("a speed above 0 is expected, such as 1.5GB/s".to_string()),
        speed => Ok(speed),
    }
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
    fn sizes_are_read() {
        for (text, bytes) in [
            ("12GiB", 12 << 30),
            ("8G", 8 << 30),
            ("800MiB", 800 << 20),
            ("1.5 gib", 3 << 29),
            ("2GB", 2_000_000_000),
            ("64KB", 64_000),
            ("64k", 65_536),
            ("77B", 77),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for (text, word) in [
            ("12", "unit is missing: 12GiB?"),
            ("", "such as 12GiB"),
            ("-1GiB", "such as 12GiB"),
            ("1.2.3G", "such as 12GiB"),
            ("all", "such as 12GiB"),
            ("3 gigs", "\"gigs\" is no unit"),
            ("1ib", "\"ib\" is no unit"),
            ("99999999999T", "too large"),
        ] {
            assert!(parse(text).unwrap_err().contains(word), "{text}: {:?}", parse(text));
        }
    }

    #[test]
    fn speeds_are_read() {
        for (text, speed) in [("1.5GB/s", 1_500_000_000), ("800 MiB/s", 800 << 20), ("2g", 2 << 30)] {
            assert_eq!(parse_speed(text), Ok(speed), "{text}");
        }
        for text in ["0", "0GB/s", "1500", "fast", "1GB/h", "/s"] {
            assert!(parse_speed(text).unwrap_err().contains("such as 1.5GB/s"), "{text}: {:?}", parse_speed(text));
        }
    }

    #[test]
    fn large_numbers_are_short() {
        assert_eq!((bytes(1023), bytes(1536)), ("1023 B".to_string(), "1.50 KiB".to_string()));
        assert_eq!((count(999), count(22_700_000)), ("999".to_string(), "22.70 M".to_string()));
    }
}
