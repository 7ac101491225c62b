//! Compiles the kernels for each family of cards whose feature is on, where its compiler is found; without one the crate is
//! built all the same, with a warning and no kernels of that family.

mod cuda;
mod hip;
mod kept;
mod spirv;

fn main() {
    for path in ["build", "device"] {
        println!("cargo:rerun-if-changed={path}");
    }
    cuda::build();
    hip::build();
    spirv::build();
}
