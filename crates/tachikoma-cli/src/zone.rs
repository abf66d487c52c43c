//! Time zones that agents name, and the time zone of this machine.

use jiff::tz::TimeZone;
use tachikoma_core::Timestamp;

/// Returns the current offset of a time zone from UTC in seconds, positive to the east. Without a name, uses the zone of this machine.
pub fn seconds_east(zone: Option<&str>) -> Option<i32> {
    let zone = match zone {
        Some(name) => TimeZone::get(name).ok()?,
        None => TimeZone::system(),
    };
    Some(zone.to_offset(jiff::Timestamp::now()).seconds())
}

/// Formats a time in the time zone of this machine, with the day if it is not today.
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
