//! The host's side of the CUDA backend, against a driver that works in the host's memory (`tests/standin`): which cards
//! there are, loading and verifying, damage, every driver call failing, what is refused.
//!
//! Loading needs a program that was built with nvcc. Without it these tests say so and pass, unless `GANTRY_REQUIRE_NVCC`
//! is set.

mod beside;
mod card;
mod damage;
mod devices;
mod drafts;
mod faults;
mod kernels;
mod loading;
mod models;
mod refusals;
mod reload;
mod sampling;
