//! Reads the messages in which each version of the agent reports a usage limit and its reset. Only the text of a
//! failed result is read, never the output of a tool or of the model.

use jiff::civil::{Date, DateTime, Time};
use jiff::{SignedDuration, tz::Offset};
use tachikoma_core::Timestamp;

/// A time of day that passed less than this long ago is not taken for tomorrow's. Limits with a time of
/// day last five hours, and a service that resets a limit late repeats the old time.
const PASSED_MAX: SignedDuration = SignedDuration::from_hours(6);

/// Returns whether a failed result says that a usage limit was reached.
pub fn is_limit(text: &str) -> bool {
    let hit = text.strip_prefix("You've hit your ").is_some_and(|rest| {
        let sentence = rest.split(" · ").next().unwrap_or(rest);
        sentence.split(' ').any(|word| word == "limit")
    });
    hit || text.starts_with("Claude AI usage limit reached")
        || text.starts_with("Spending cap reached")
}

/// Returns the reset time in a text such as `Claude AI usage limit reached|1794715906`.
pub fn epoch(text: &str) -> Option<Timestamp> {
    let (_, seconds) = text.split_once('|')?;
    moment(seconds.trim().parse().ok()?)
}

/// Returns a time from seconds since the Unix epoch; `None` if it is out of range.
pub fn moment(seconds: u64) -> Option<Timestamp> {
    let millis = i64::try_from(seconds).ok()?.checked_mul(1000)?;
    (millis > 0).then(|| Timestamp::from_millis(millis))
}

/// Returns the time in the text of a failed result, such as `... · resets 4:11am (UTC)` or
/// `... resets Nov 20, 4pm (Europe/Prague)`: the first one after `now`, or one that has just passed.
///
/// `seconds_east` returns the offset of a time zone from UTC. It is called without a name if the text names no zone, which
/// means the zone of the machine. If it does not know the zone, the time is unknown.
#[must_use]
pub fn resets_at(
    text: &str,
    now: Timestamp,
    seconds_east: impl Fn(Option<&str>) -> Option<i32>,
) -> Option<Timestamp> {
    if let Some(moment) = epoch(text) {
        return Some(moment);
    }
    let (_, named) = text.rsplit_once("resets ")?;
    let (clock, zone) = match named.split_once('(') {
        Some((clock, zone)) => (clock, Some(zone.split(')').next()?)),
        None => (named, None),
    };
    let east = match zone {
        Some("UTC") => 0,
        zone => seconds_east(zone)?,
    };
    let offset = Offset::from_seconds(east).ok()?;
    let here = offset.to_datetime(jiff::Timestamp::from_millisecond(now.as_millis()).ok()?);
    let there = next(clock, here)?;
    let millis = offset.to_timestamp(there).ok()?.as_millisecond();
    Some(Timestamp::from_millis(millis))
}

/// Reads `4:11am`, `Nov 20, 4pm` or `Nov 20 at 4:11pm`: the first such time after `here`, or one that has just passed.
fn next(clock: &str, here: DateTime) -> Option<DateTime> {
    let words: Vec<&str> = clock
        .split([' ', ','])
        .filter(|word| !word.is_empty() && *word != "at")
        .collect();
    match words[..] {
        [time] => {
            let today = here.date().to_datetime(time_of_day(time)?);
            let earliest = here.checked_sub(PASSED_MAX).ok()?;
            // Shortly after midnight, the time of yesterday may have just passed.
            [-24, 0, 24].into_iter().find_map(|hours| {
                let moment = today.checked_add(SignedDuration::from_hours(hours)).ok()?;
                (moment >= earliest).then_some(moment)
            })
        }
        [month, day, time] => {
            let time = time_of_day(time)?;
            let (month, day) = (month_number(month)?, day.parse().ok()?);
            // The text has no year. A date that passed less than 24 hours ago is in this year, not in the next.
            let year = |year| {
                Date::new(year, month, day)
                    .ok()
                    .map(|date| date.to_datetime(time))
            };
            let earliest = here.checked_sub(SignedDuration::from_hours(24)).ok()?;
            year(here.year())
                .filter(|moment| *moment >= earliest)
                .or_else(|| year(here.year() + 1))
        }
        _ => None,
    }
}

fn time_of_day(word: &str) -> Option<Time> {
    let (clock, afternoon) = match (word.strip_suffix("am"), word.strip_suffix("pm")) {
        (Some(clock), _) => (clock, 0),
        (_, Some(clock)) => (clock, 12),
        (None, None) => return None,
    };
    let (hour, minute) = clock.split_once(':').unwrap_or((clock, "0"));
    let hour: i8 = hour.parse().ok().filter(|hour| (1..=12).contains(hour))?;
    Time::new(hour % 12 + afternoon, minute.parse().ok()?, 0, 0).ok()
}

fn month_number(word: &str) -> Option<i8> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    (1..)
        .zip(MONTHS)
        .find(|(_, name)| word.starts_with(name))
        .map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-15T02:40:36Z.
    const NOW: i64 = 1_794_710_436_000;

    fn reset(text: &str) -> Option<String> {
        let zones = |zone: Option<&str>| match zone {
            None => Some(-5 * 3600),
            Some("Europe/Prague") => Some(3600),
            Some(_) => None,
        };
        resets_at(text, Timestamp::from_millis(NOW), zones).map(|moment| moment.to_string())
    }

    #[test]
    fn usage_limits_of_every_version_are_recognized() {
        for text in [
            "Claude AI usage limit reached|1794715906",
            "Spending cap reached resets 4:11am",
            "You've hit your limit · resets 4:11am (UTC)",
            "You've hit your session limit · resets 4:11am (UTC)",
            "You've hit your 5-hour limit · resets 4:10am (UTC)",
        ] {
            assert!(is_limit(text), "{text}");
        }
        for text in [
            "API Error: Request rejected (429) · Rate limited",
            "You've hit your head · no limit",
            "I said: You've hit your limit",
        ] {
            assert!(!is_limit(text), "{text}");
        }
    }

    #[test]
    fn reset_time_without_a_date_is_the_next_one_unless_it_has_just_passed() {
        for (text, expected) in [
            (
                "Claude AI usage limit reached|1794715906",
                Some("2026-11-15T04:11:46.000Z"),
            ),
            ("x · resets 4:11am (UTC)", Some("2026-11-15T04:11:00.000Z")),
            ("x · resets 2:40am (UTC)", Some("2026-11-15T02:40:00.000Z")),
            ("x · resets 2am (UTC)", Some("2026-11-15T02:00:00.000Z")),
            ("x · resets 12am (UTC)", Some("2026-11-15T00:00:00.000Z")),
            ("x · resets 9pm (UTC)", Some("2026-11-14T21:00:00.000Z")),
            ("x · resets 8pm (UTC)", Some("2026-11-15T20:00:00.000Z")),
            ("x · resets 12:30pm (UTC)", Some("2026-11-15T12:30:00.000Z")),
            (
                "x · resets 4pm (Europe/Prague)",
                Some("2026-11-15T15:00:00.000Z"),
            ),
            // A time without a zone is in the machine's zone, where it is still the evening before.
            (
                "Spending cap reached resets 11:11pm",
                Some("2026-11-15T04:11:00.000Z"),
            ),
            (
                "x · resets Nov 20, 4pm (UTC)",
                Some("2026-11-20T16:00:00.000Z"),
            ),
            (
                "x · resets Jan 2 at 4:05am (UTC)",
                Some("2027-01-02T04:05:00.000Z"),
            ),
            ("x · resets 4pm (Atlantis)", None),
            ("x · resets 13pm (UTC)", None),
            ("x · resets soon", None),
            ("x|y", None),
            ("x", None),
        ] {
            assert_eq!(reset(text).as_deref(), expected, "{text}");
        }
    }
}
