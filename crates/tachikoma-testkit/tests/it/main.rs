//! The scripted model and the fake agent from outside: over a socket, as a process.

mod fake_agent;
mod fake_agent_wrong;
mod model;
mod support;
