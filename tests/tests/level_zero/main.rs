//! The Level Zero backend against a driver that works in the host's memory (`tests/standin-ze`), under Level Zero's own loader.
//!
//! Needs `libze1` (`GANTRY_REQUIRE_ZE=1`: its absence is a failure). What computes needs Intel's OpenCL runtime for processors
//! too, to which `OCL_ICD_VENDORS` leads, and a program with kernels as SPIR-V; else it says so and passes, unless
//! `GANTRY_REQUIRE_SPIRV` is set.

mod cards;
mod damage;
mod devices;
mod faults;
mod machine;
mod models;
mod refusals;
mod text;
