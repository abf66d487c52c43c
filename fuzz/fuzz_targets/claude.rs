//! Any bytes, line by line, to the decoder of Claude Code.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tachikoma_agents::Observation;
use tachikoma_agents::claude::Decoder;

fuzz_target!(|bytes: &[u8]| {
    let mut decoder = Decoder::default();
    let mut seen = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        decoder.observe(line, &mut seen);
        for observation in seen.drain(..) {
            if let Observation::Measured(reading) = observation {
                assert!(reading.context().percent().is_finite());
            }
        }
        assert!(decoder.cost_usd().is_finite());
    }
});
