//! The access log: a line for each request, on standard error and in a file that is rotated.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a log file before the next one begins.
const FILE_BYTES: u64 = 16 << 20;
/// Older files that stay, as `name.1` to `name.4`.
const OLDER: usize = 4;

/// Where lines go.
pub struct Logger {
    quiet: bool,
    file: Option<Mutex<Rotated>>,
}

/// One line: `time key=value key=value ...`; values with blanks are quoted.
pub struct Line(String);

impl Line {
    pub fn new(what: &str) -> Line {
        Line(format!("{} {what}", timestamp(SystemTime::now())))
    }

    pub fn add(mut self, key: &str, value: impl std::fmt::Display) -> Line {
        let value = value.to_string();
        let plain = !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"');
        // Writing to a String does not fail.
        let _ = match plain {
            true => write!(self.0, " {key}={value}"),
            false => write!(self.0, " {key}={value:?}"),
        };
        self
    }
}

impl Logger {
    pub fn new(quiet: bool, file: Option<&Path>) -> io::Result<Logger> {
        let file = file.map(|path| Rotated::open(path, FILE_BYTES).map(Mutex::new)).transpose()?;
        Ok(Logger { quiet, file })
    }

    /// A log that can not be written never stops the server.
    pub fn write(&self, line: Line) {
        let text = line.0 + "\n";
        if !self.quiet {
            let _ = io::stderr().write_all(text.as_bytes());
        }
        if let Some(file) = &self.file {
            let _ = file.lock().unwrap_or_else(PoisonError::into_inner).write(text.as_bytes());
        }
    }
}

/// A file that begins anew at a size, and its older ones.
struct Rotated {
    path: PathBuf,
    file: File,
    size: u64,
    limit: u64,
}

impl Rotated {
    fn open(path: &Path, limit: u64) -> io::Result<Rotated> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let size = file.metadata()?.len();
        Ok(Rotated { path: path.to_path_buf(), file, size, limit })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.size > 0 && self.size + bytes.len() as u64 > self.limit {
            self.begin_anew();
        }
        self.file.write_all(bytes)?;
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Puts the file aside, if it was not yet: where no new one could be had, the older ones shall not move up again.
    fn begin_anew(&mut self) {
        if self.path.exists() {
            for n in (0..OLDER).rev() {
                // A number that is not there yet is no reason to lose lines.
                let _ = std::fs::rename(self.numbered(n), self.numbered(n + 1));
            }
        }
        // Without a new file the old one goes on.
        let Ok(fresh) = Rotated::open(&self.path, self.limit) else { return };
        *self = fresh;
        // A file that could not be put aside still must not grow for ever.
        if self.size > 0 && self.file.set_len(0).is_ok() {
            self.size = 0;
        }
    }

    fn numbered(&self, n: usize) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        if n > 0 {
            name.push(format!(".{n}"));
        }
        name.into()
    }
}

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// UTC, as in RFC 3339, to the millisecond.
pub fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = ((since.as_secs() / 86_400) as i64, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// The date of a day counted from 1970-01-01, in the Gregorian calendar (years of 400 from March on).
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let of_era = z.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_dates() {
        let at = |seconds| timestamp(UNIX_EPOCH + Duration::from_millis(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_798_761_599_999), "2026-12-31T23:59:59.999Z");
    }

    #[test]
    fn values_can_not_break_lines() {
        let line = Line::new("request").add("a", 1).add("b", "x y\n\"z\"").0;
        assert!(line.ends_with(r#"Z request a=1 b="x y\n\"z\"""#), "{line}");
    }

    #[test]
    fn a_full_file_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut log = Rotated::open(&path, 10).unwrap();
        (0..8).for_each(|i| log.write(format!("line {i}\n").as_bytes()).unwrap());
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(
            (read("log"), read("log.1"), read("log.4")),
            ("line 7\n".into(), "line 6\n".into(), "line 3\n".into())
        );
        assert!(!dir.path().join("log.5").exists());
    }

    #[test]
    fn a_file_that_can_not_be_put_aside_stays_bounded() {
        let dir = tempfile::tempdir().unwrap();
        (1..=OLDER).for_each(|n| std::fs::create_dir_all(dir.path().join(format!("log.{n}/taken"))).unwrap());
        let path = dir.path().join("log");
        let mut log = Rotated::open(&path, 20).unwrap();
        (0..8).for_each(|i| log.write(format!("line {i}\n").as_bytes()).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "line 6\nline 7\n");
    }

    #[test]
    fn lines_go_on_where_no_new_file_can_be_had() {
        let dir = tempfile::tempdir().unwrap();
        let (here, away) = (dir.path().join("here"), dir.path().join("away"));
        std::fs::create_dir(&here).unwrap();
        let mut log = Rotated::open(&here.join("log"), 10).unwrap();
        log.write(b"line 0\n").unwrap();
        std::fs::rename(&here, &away).unwrap();
        (1..4).for_each(|i| log.write(format!("line {i}\n").as_bytes()).unwrap());
        std::fs::create_dir(&here).unwrap();
        log.write(b"line 4\n").unwrap();
        assert_eq!(std::fs::read_to_string(away.join("log")).unwrap(), "line 0\nline 1\nline 2\nline 3\n");
        assert_eq!(std::fs::read_to_string(here.join("log")).unwrap(), "line 4\n");
    }
}
