//! The HIP backend against a library that works in the host's memory (`tests/standin-hip`).
//!
//! Needs a program with HIP kernels (`GANTRY_REQUIRE_CLANG`: their absence is a failure). What computes needs PoCL too
//! (`GANTRY_REQUIRE_OPENCL=1`). Without these it says so and passes.

mod cards;
mod damage;
mod devices;
mod faults;
mod machine;
mod models;
mod refusals;
mod text;
