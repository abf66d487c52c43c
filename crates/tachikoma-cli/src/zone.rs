//! Time zones: those that agents name, and the one of the person who reads.

use jiff::tz::TimeZone;
use tachikoma_core::Timestamp;

/// Answers how far a time zone is east of UTC now, in seconds; asked for none, the zone of this machine.
pub fn seconds_east(zone: Option<&str>) -> Option<i32> {
    let zone = match zone {
        Some(name) => TimeZone::get(name).ok()?,
        None => TimeZone::system(),
    };
    Some(zone.to_offset(jiff::Timestamp::now()).seconds())
}

/// Writes a moment as a clock on the wall of this machine shows it, with the day where it is not today.
pub fn local(moment: Timestamp) -> String {
    let Ok(moment) = jiff::Timestamp::from_millisecond(moment.as_millis()) else {
        return moment.to_string();
    };
    let here = moment.to_zoned(TimeZone::system());
    let today = jiff::Timestamp::now().to_zoned(TimeZone::system()).date();
    if here.date() == today {
        here.strftime("%H:%M:%S").to_string()
    } else {
        here.strftime("%a %d %b %H:%M").to_string()
    }
}
