//! Bytes written on the day, kept in the lock file, so that all processes and the next start go on counting.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::time::{Duration, SystemTime};

/// Once half of the day's bytes are spent, only segments of so many new tokens go in.
pub const LONG: u64 = 1024;

const MAGIC: [u8; 8] = *b"mrtlday1";
const RECORD: usize = 32;

/// What was written on a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Since 1970, in UTC.
    pub day: u64,
    pub written: u64,
}

impl Allowance {
    /// What counts now. A later day begins at 0. A clock that was set back begins nothing: what is written stays
    /// written. Back by a day, and forward again, gives nothing either; farther back is taken for the truth, since a
    /// clock that once ran years ahead would else stop the count for years.
    pub fn at(self, now: SystemTime) -> Allowance {
        let day = seconds(now) / 86_400;
        match self.day {
            stored if day > stored => Allowance { day, written: 0 },
            stored if stored - day <= 1 => self,
            _ => Allowance { day, ..self },
        }
    }

    pub fn admits(&self, bytes: u64, new_tokens: u64, daily: u64) -> bool {
        let fits = self.written.checked_add(bytes).is_some_and(|sum| sum <= daily);
        fits && (new_tokens >= LONG || self.written <= daily / 2)
    }

    /// What the file says; nothing was written if it says nothing sensible.
    pub fn read(mut file: &File) -> io::Result<Allowance> {
        file.seek(SeekFrom::Start(0))?;
        let mut record = Vec::with_capacity(RECORD);
        file.take(RECORD as u64).read_to_end(&mut record)?;
        let number = |at: usize| record.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        Ok(match (number(8), number(16)) {
            (Some(day), Some(written)) if record == (Allowance { day, written }).record() => Allowance { day, written },
            _ => Allowance::default(),
        })
    }

    pub fn write(&self, mut file: &File) -> io::Result<()> {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&self.record())
    }

    fn record(&self) -> [u8; RECORD] {
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(&MAGIC);
        record[8..16].copy_from_slice(&self.day.to_le_bytes());
        record[16..24].copy_from_slice(&self.written.to_le_bytes());
        let hash = blake3::hash(&record[..24]);
        record[24..].copy_from_slice(&hash.as_bytes()[..8]);
        record
    }
}

/// Since 1970; a clock before that stands at 0.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(n: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(n * 86_400 + 100)
    }

    #[test]
    fn only_a_later_day_begins_anew() {
        let today = Allowance { day: 20, written: 7 };
        assert_eq!(today.at(day(20)), today);
        assert_eq!(today.at(day(21)), Allowance { day: 21, written: 0 });
        assert_eq!(today.at(day(19)).at(day(20)), today);
        assert_eq!(today.at(day(3)), Allowance { day: 3, written: 7 });
        assert_eq!(today.at(day(3)).at(day(4)).written, 0);
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(5);
        assert_eq!(today.at(before), Allowance { day: 0, written: 7 });
    }

    #[test]
    fn the_second_half_is_for_long_segments() {
        let spent = |written| Allowance { day: 0, written };
        assert!(spent(50).admits(10, 1, 100));
        assert!(!spent(51).admits(10, 1023, 100) && spent(51).admits(10, 1024, 100));
        assert!(spent(90).admits(10, 1024, 100) && !spent(91).admits(10, 1024, 100));
        assert!(!spent(u64::MAX).admits(10, 1024, u64::MAX) && !spent(0).admits(1, 1, 0));
    }

    #[test]
    fn a_damaged_record_counts_for_nothing() {
        let mut file = tempfile::tempfile().unwrap();
        assert_eq!(Allowance::read(&file).unwrap(), Allowance::default());
        let today = Allowance { day: 20, written: 1 << 40 };
        for at in 0..RECORD as u64 {
            today.write(&file).unwrap();
            assert_eq!(Allowance::read(&file).unwrap(), today);
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&[0xee]).unwrap();
            assert_eq!(Allowance::read(&file).unwrap(), Allowance::default(), "byte {at}");
        }
        file.set_len(31).unwrap();
        assert_eq!(Allowance::read(&file).unwrap(), Allowance::default());
    }
}
