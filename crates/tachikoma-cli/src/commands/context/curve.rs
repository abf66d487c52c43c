//! Reads the context usage of one session from the records of its loop.

use serde::Serialize;
use tachikoma_core::{Context, LoopEvent, Record, SessionNo, Timestamp};
use tachikoma_loop_runner::settings::Settings;

/// Maximum number of readings. If a session has more, every other reading is left out.
const READINGS_MAX: usize = 4096;

/// An event that happened at a reading, or between it and the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// The first reading at or above `context.warning_percent`.
    Warning,
    /// The agent was asked to finish.
    Advice,
    /// The first reading at or above the redline.
    Redline,
    /// A reboot was requested.
    RebootDue,
    /// A reboot failed and the session continued.
    RebootFailed,
    /// The session was replaced.
    Rebooted,
}

impl Mark {
    /// Returns the event as text.
    pub fn word(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Advice => "asked to finish",
            Self::Redline => "redline",
            Self::RebootDue => "reboot due",
            Self::RebootFailed => "reboot failed",
            Self::Rebooted => "rebooted",
        }
    }
}

/// One reading of the context usage, at the end of an answer.
#[derive(Clone, Debug, Serialize)]
pub struct Reading {
    /// The time of the reading.
    pub time: Timestamp,
    /// Number of the iteration.
    pub iteration: u32,
    /// Number of tokens in the context.
    pub tokens: u64,
    /// Context usage in percent, with one decimal.
    pub percent: f64,
    /// Whether the reading is an estimate.
    pub estimated: bool,
    /// The events at this reading.
    pub marks: Vec<Mark>,
}

/// The context usage of a session over time.
#[derive(Clone, Debug, Serialize)]
pub struct Curve {
    /// Number of the session.
    pub session: SessionNo,
    /// Size of the context in tokens, according to the last reading.
    pub window: u64,
    /// Usage in percent at which a warning is given.
    pub warning_percent: f64,
    /// Number of tokens at which the session is replaced; `None` if it is unknown.
    pub redline_tokens: Option<u64>,
    /// Readings, oldest first.
    pub readings: Vec<Reading>,
    /// Number of readings that were left out.
    pub left_out: u64,
    #[serde(skip)]
    warned: bool,
    #[serde(skip)]
    crossed: bool,
    /// Only every n-th reading is stored.
    #[serde(skip)]
    every: u64,
    #[serde(skip)]
    seen: u64,
    /// The last reading of an answer that is not finished: time, iteration and usage. `None` if no answer is being written.
    #[serde(skip)]
    open: Option<(Timestamp, u32, Context)>,
    #[serde(skip)]
    open_marks: Vec<Mark>,
}

impl Curve {
    fn new(session: SessionNo, warning_percent: f64) -> Self {
        Self {
            session,
            window: 0,
            warning_percent,
            redline_tokens: None,
            readings: Vec::new(),
            left_out: 0,
            warned: false,
            crossed: false,
            every: 1,
            seen: 0,
            open: None,
            open_marks: Vec::new(),
        }
    }

    /// Stores the reading of an unfinished answer. It is only used if no later reading replaces it.
    fn answering(&mut self, time: Timestamp, iteration: u32, context: Context) {
        self.open = Some((time, iteration, context));
    }

    /// Ends an answer, and adds its last reading.
    fn close(&mut self) {
        if let Some((time, iteration, context)) = self.open.take() {
            self.measured(time, iteration, &context);
        }
    }

    fn measured(&mut self, time: Timestamp, iteration: u32, context: &Context) {
        self.open = None;
        self.window = context.window;
        let mut marks = Vec::new();
        if !self.warned && context.percent() >= self.warning_percent {
            self.warned = true;
            marks.push(Mark::Warning);
        }
        let redline = self.redline_tokens;
        if !self.crossed && redline.is_some_and(|redline| context.tokens >= redline) {
            self.crossed = true;
            marks.push(Mark::Redline);
        }
        marks.append(&mut self.open_marks);
        self.seen += 1;
        let reading = Reading {
            time,
            iteration,
            tokens: context.tokens,
            percent: (context.percent() * 10.0).round() / 10.0,
            estimated: context.estimated,
            marks,
        };
        if !self.seen.is_multiple_of(self.every) && reading.marks.is_empty() {
            self.left_out += 1;
            return;
        }
        self.readings.push(reading);
        if self.readings.len() >= READINGS_MAX {
            self.drop_every_other();
        }
    }

    /// Removes every other reading that has no event.
    fn drop_every_other(&mut self) {
        let before = self.readings.len();
        let mut position = 0_usize;
        self.readings.retain(|reading| {
            position += 1;
            position.is_multiple_of(2) || !reading.marks.is_empty()
        });
        self.left_out += (before - self.readings.len()) as u64;
        self.every *= 2;
    }

    /// Adds an event to the reading of the unfinished answer, or to the latest reading.
    fn mark(&mut self, mark: Mark) {
        let marks = match self.readings.last_mut() {
            Some(latest) if self.open.is_none() => &mut latest.marks,
            Some(_) | None => &mut self.open_marks,
        };
        if !marks.contains(&mark) {
            marks.push(mark);
        }
    }
}

/// Finds the context usage of one session in the records of a loop.
pub struct Curves {
    wanted: Option<SessionNo>,
    warning_percent: f64,
    iteration: u32,
    current: Curve,
    /// The latest finished curve of a wanted session.
    found: Option<Curve>,
}

impl Curves {
    /// Searches for a session; by default for the latest one with a reading.
    pub fn new(wanted: Option<SessionNo>) -> Self {
        let warning_percent = Settings::default().context.warning_percent.get();
        Self {
            wanted,
            warning_percent,
            iteration: 0,
            current: Curve::new(SessionNo(0), warning_percent),
            found: None,
        }
    }

    /// Processes one record.
    pub fn take(&mut self, record: &Record) {
        match &record.event {
            LoopEvent::SegmentOpened { state, .. } => {
                self.iteration = state.iteration;
                if state.session.number != self.current.session {
                    self.begin(state.session.number);
                    self.current.redline_tokens = state.session.redline_tokens;
                }
            }
            LoopEvent::Started { launch, .. } => {
                let set = launch.settings.as_ref();
                let set = set.and_then(|set| set.get("context.warning_percent")?.parse().ok());
                let default = || Settings::default().context.warning_percent.get();
                self.warning_percent = set.unwrap_or_else(default);
                self.current.warning_percent = self.warning_percent;
            }
            LoopEvent::SessionStarted { session, .. } => self.begin(*session),
            LoopEvent::IterationStarted { iteration, .. } => self.iteration = *iteration,
            LoopEvent::ContextMeasured {
                context,
                answering,
                redline_tokens,
            } => {
                let curve = &mut self.current;
                curve.redline_tokens = redline_tokens.or(curve.redline_tokens);
                if *answering {
                    curve.answering(record.time, self.iteration, *context);
                } else {
                    curve.measured(record.time, self.iteration, context);
                }
            }
            LoopEvent::IterationCompleted { .. } | LoopEvent::IterationFailed { .. } => {
                self.current.close();
            }
            LoopEvent::WrapUpAdvised { .. } => self.current.mark(Mark::Advice),
            LoopEvent::RebootRequested { .. } => self.current.mark(Mark::RebootDue),
            LoopEvent::RebootFailed { .. } => self.current.mark(Mark::RebootFailed),
            // This event is recorded after the start of the next session, so it belongs to the session `from`.
            LoopEvent::RebootCompleted { from, .. } => {
                let over = self.found.as_mut().filter(|found| found.session == *from);
                if let Some(over) = over {
                    over.mark(Mark::Rebooted);
                }
            }
            _ => {}
        }
    }

    fn begin(&mut self, session: SessionNo) {
        let next = Curve::new(session, self.warning_percent);
        let over = std::mem::replace(&mut self.current, next);
        self.keep(over);
    }

    fn keep(&mut self, mut curve: Curve) {
        curve.close();
        let is_wanted = self.wanted.is_none_or(|wanted| wanted == curve.session);
        if is_wanted && !curve.readings.is_empty() {
            self.found = Some(curve);
        }
    }

    /// Returns the curve that was found.
    pub fn finish(mut self) -> Option<Curve> {
        let last = Curve::new(SessionNo(0), 0.0);
        let current = std::mem::replace(&mut self.current, last);
        self.keep(current);
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_session_uses_little_memory_and_keeps_its_ends_and_events() {
        let mut curve = Curve::new(SessionNo(1), 70.0);
        curve.redline_tokens = Some(85_000);
        for tokens in 0..=90_000 {
            let time = Timestamp::from_millis(i64::try_from(tokens).unwrap());
            let context = Context {
                tokens,
                window: 100_000,
                estimated: false,
            };
            curve.measured(time, 1, &context);
            if tokens == 50_001 {
                curve.mark(Mark::RebootFailed);
            }
        }
        assert!(curve.readings.len() <= READINGS_MAX);
        assert!(curve.readings.len() >= READINGS_MAX / 2 - 1);
        assert_eq!(curve.readings.len() as u64 + curve.left_out, 90_001);
        let at = |mark: Mark| {
            let found = curve.readings.iter().find(|r| r.marks.contains(&mark));
            found.map(|reading| reading.tokens)
        };
        assert_eq!(at(Mark::Warning), Some(70_000));
        assert_eq!(at(Mark::Redline), Some(85_000));
        assert!(at(Mark::RebootFailed).is_some());
        let times: Vec<_> = curve.readings.iter().map(|reading| reading.time).collect();
        assert!(times.is_sorted());
        assert!(
            curve
                .readings
                .last()
                .is_some_and(|last| last.tokens > 89_900)
        );
    }

    #[test]
    fn last_reading_of_an_unfinished_answer_is_used() {
        let mut curve = Curve::new(SessionNo(1), 70.0);
        let context = |tokens| Context {
            tokens,
            window: 100,
            estimated: false,
        };
        let time = Timestamp::default();
        curve.answering(time, 1, context(10));
        curve.mark(Mark::RebootDue);
        curve.measured(time, 1, &context(11));
        curve.answering(time, 1, context(20));
        curve.close();
        curve.close();
        let read: Vec<_> = curve
            .readings
            .iter()
            .map(|r| (r.tokens, r.marks.len()))
            .collect();
        assert_eq!(read, [(11, 1), (20, 0)]);
    }
}
