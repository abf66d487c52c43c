//! Tests of the core through its public interface: one test per rule, every phase against every input, and
//! thousands of simulated loops with faults and crashes.

mod grid;
mod play;
mod rules;
mod sim;
mod supervise;
mod supervise_sim;
mod words;
