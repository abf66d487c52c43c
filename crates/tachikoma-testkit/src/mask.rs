//! Replaces text that differs from run to run by placeholders, so that whole outputs can be compared.

/// Gets the character before a position and the text after it. Returns the length to replace and the placeholder; `None` if no match.
type Pattern = fn(Option<char>, &str) -> Option<(usize, &'static str)>;

const PATTERNS: [Pattern; 5] = [loop_id, time, pid, clock, duration];

/// Replaces loop ids by `[LOOP]`, RFC 3339 times by `[TIME]`, clock times by `[CLOCK]`, process ids by `[PID]` and measured
/// durations by `[DURATION]`.
///
/// Durations of a configuration (`5s`, `10m`) are not replaced, because they do not vary.
#[must_use]
pub fn mask(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut previous = None;
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let found = PATTERNS
            .iter()
            .find_map(|pattern| pattern(previous, rest))
            .unwrap_or_else(|| (next.len_utf8(), &rest[..next.len_utf8()]));
        let (length, replacement) = found;
        masked.push_str(replacement);
        previous = rest[..length].chars().last();
        rest = &rest[length..];
    }
    masked
}

/// Matches `loop_` and a UUID.
fn loop_id(_: Option<char>, text: &str) -> Option<(usize, &'static str)> {
    let rest = text.strip_prefix("loop_")?;
    let rest = shaped(rest, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")?;
    Some((text.len() - rest.len(), "[LOOP]"))
}

/// Matches `2026-01-31T12:00:00.123Z`, with or without a fraction, in UTC or with an offset.
fn time(_: Option<char>, text: &str) -> Option<(usize, &'static str)> {
    let mut rest = shaped(text, "dddd-dd-ddTdd:dd:dd")?;
    if let Some(fraction) = rest.strip_prefix('.') {
        rest = after_digits(fraction)?;
    }
    let rest = rest
        .strip_prefix('Z')
        .or_else(|| shaped(rest.strip_prefix(['+', '-'])?, "dd:dd"))?;
    Some((text.len() - rest.len(), "[TIME]"))
}

/// Matches `12:00:00`.
fn clock(previous: Option<char>, text: &str) -> Option<(usize, &'static str)> {
    if previous.is_some_and(|before| before.is_alphanumeric() || before == ':') {
        return None;
    }
    let rest = shaped(text, "dd:dd:dd")?;
    Some((text.len() - rest.len(), "[CLOCK]"))
}

/// Matches the number after the word `pid`: `pid 12`, `pid: 12`, `pid=12`, `"pid":12`.
fn pid(previous: Option<char>, text: &str) -> Option<(usize, &'static str)> {
    for (lead, replacement) in [
        ("pid ", "pid [PID]"),
        ("pid: ", "pid: [PID]"),
        ("pid=", "pid=[PID]"),
        ("pid\":", "pid\":[PID]"),
        ("pid\": ", "pid\": [PID]"),
    ] {
        if let Some(rest) = text.strip_prefix(lead).and_then(after_digits)
            && !previous.is_some_and(char::is_alphanumeric)
        {
            return Some((text.len() - rest.len(), replacement));
        }
    }
    None
}

/// Matches `1.23 s`, `15 ms`, `1 min 3 s` and `1.2s`: a space before the unit, or a fraction.
fn duration(previous: Option<char>, text: &str) -> Option<(usize, &'static str)> {
    if previous.is_some_and(|before| before.is_alphanumeric() || before == '.' || before == '_') {
        return None;
    }
    let mut rest = one_duration(text)?;
    while let Some(longer) = rest.strip_prefix(' ').and_then(one_duration) {
        rest = longer;
    }
    Some((text.len() - rest.len(), "[DURATION]"))
}

fn one_duration(text: &str) -> Option<&str> {
    let whole = after_digits(text)?;
    let fraction = whole.strip_prefix('.').and_then(after_digits);
    let number = fraction.unwrap_or(whole);
    let unit = match number.strip_prefix(' ') {
        Some(unit) => unit,
        None if fraction.is_some() => number,
        None => return None,
    };
    ["ms", "us", "µs", "min", "s", "m", "h"]
        .iter()
        .filter_map(|name| unit.strip_prefix(name))
        .find(|rest| !rest.starts_with(char::is_alphanumeric))
}

fn after_digits(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    (rest.len() < text.len()).then_some(rest)
}

/// Returns the text after a given shape: `d` is a digit, `x` a hexadecimal digit, all
/// other characters are literal.
fn shaped<'a>(text: &'a str, shape: &str) -> Option<&'a str> {
    let mut rest = text.chars();
    for wanted in shape.chars() {
        let found = rest.next()?;
        let fits = match wanted {
            'd' => found.is_ascii_digit(),
            'x' => found.is_ascii_hexdigit(),
            other => found == other,
        };
        if !fits {
            return None;
        }
    }
    Some(rest.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(mask(text), expected, "mask of {text:?}");
    }

    #[test]
    fn mask_replaces_loop_ids() {
        check(
            "loop_0b5e0bd2-6b7f-4d0e-9a52-1a2b3c4d5e6f started",
            "[LOOP] started",
        );
        check("loop_start and loop_0b5e", "loop_start and loop_0b5e");
    }

    #[test]
    fn mask_replaces_rfc_3339_times() {
        check("at 2026-11-15T05:17:44.123Z.", "at [TIME].");
        check("2026-11-15T05:17:44+02:00", "[TIME]");
        check("2026-11-15", "2026-11-15");
        check("2026-11-15T05:17:44", "2026-11-15T05:17:44");
    }

    #[test]
    fn mask_replaces_clock_times() {
        check("at 05:17:44, 1:05:17:44", "at [CLOCK], 1:05:17:44");
    }

    #[test]
    fn mask_replaces_process_ids() {
        check("held by pid 4711 since", "held by pid [PID] since");
        check(r#"{"pid":4711,"#, r#"{"pid":[PID],"#);
        check("pid: 4711, pid=12", "pid: [PID], pid=[PID]");
        check("rapid 5, pid none", "rapid 5, pid none");
    }

    #[test]
    fn mask_replaces_measured_durations() {
        check("in 1.23 s, then 15 ms", "in [DURATION], then [DURATION]");
        check("took 1 min 3 s.", "took [DURATION].");
        check("took 1.2s", "took [DURATION]");
        check("delay 5s, 3 sessions, v1.2", "delay 5s, 3 sessions, v1.2");
        check("12 µs — fine", "[DURATION] — fine");
    }

    #[test]
    fn mask_keeps_other_text() {
        check("grüße, iteration 12 of 20\n", "grüße, iteration 12 of 20\n");
    }
}
