//! Any bytes, line by line, to the decoder of Claude Code.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tachikoma_agents::AgentEvent;
use tachikoma_agents::claude::Decoder;

fuzz_target!(|bytes: &[u8]| {
    let mut decoder = Decoder::default();
    let mut seen = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        decoder.decode(line, &mut seen);
        for event in seen.drain(..) {
            if let AgentEvent::Measured(reading) = event {
                assert!(reading.context().percent().is_finite());
            }
        }
        assert!(decoder.standing().cost_usd.is_finite());
    }
});
