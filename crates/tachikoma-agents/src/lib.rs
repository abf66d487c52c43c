//! What Tachikoma knows about each coding agent: how to launch it and how to read its output.

pub mod line;
