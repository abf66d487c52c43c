//! The cost of encrypting a record before it is written.

use std::fs;
use std::time::Instant;

use tachikoma_core::{LoopId, Timestamp};
use tachikoma_loop_runner::chain;
use tachikoma_loop_runner::store::journal::Journal;

use super::Bench;
use super::driven::Driven;
use super::record::quiet_run;
use super::report::{Row, Unit};
use super::sample::Sample;
use crate::encryption::{KEY, KEY_FILE, encryption_of};
use crate::product::{Ground, text};

/// Number of iterations. Each makes two steps, and each step is measured.
const ITERATIONS: usize = 400;

const ENCRYPTED_TIMES: f64 = 1.3;

/// Measures the append and sync of an encrypted journal, alternating with a plain one on the same disk.
pub fn measure(bench: &Bench) -> Result<Vec<Row>, String> {
    let ground = Ground::new(&bench.product, &bench.disk)?;
    quiet_run(&ground, 1)?;
    let mut driven = Driven::take_up(ground.path())?;
    let keys = ground.path().join("encrypted");
    fs::create_dir(&keys).map_err(text)?;
    fs::write(keys.join(KEY_FILE), KEY).map_err(text)?;
    let dir = keys.join(".ralph/loops/loop");
    let (mut encrypted, _) = Journal::create(
        &dir,
        LoopId::from_u128(1),
        Timestamp::default(),
        &encryption_of(&keys),
    )
    .map_err(|error| chain(&error))?;
    let (mut ours, mut plain) = (Sample::default(), Sample::default());
    for round in 0..ITERATIONS {
        driven.iterate(&mut |writer, step| {
            let mut encrypt = || {
                let started = Instant::now();
                encrypted.append_synced(&step.records)?;
                ours.add(started.elapsed().as_secs_f64() * 1e3);
                Ok::<_, tachikoma_loop_runner::store::StoreError>(())
            };
            // The order alternates, because the disk may still be busy with the first write.
            if round % 2 == 1 {
                encrypt()?;
            }
            let started = Instant::now();
            writer.append_synced(&step.records)?;
            plain.add(started.elapsed().as_secs_f64() * 1e3);
            if round % 2 == 0 {
                encrypt()?;
            }
            Ok(())
        })?;
    }
    let row = Row::goal(
        "encrypted record",
        ours.median() / plain.median(),
        Unit::Times,
        ENCRYPTED_TIMES,
    );
    Ok(vec![row.detail(format!(
        "{:.3} ms to {:.3} ms of a plain durable record; least {:.2}x",
        ours.median(),
        plain.median(),
        ours.min() / plain.min()
    ))])
}
