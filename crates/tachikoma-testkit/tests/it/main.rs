//! Tests of the scripted model and the fake agent over a socket and as a process.

mod fake_agent;
mod fake_agent_wrong;
mod model;
mod support;
