//! The portable kernels on PoCL, run as the stand-ins run them.
#![allow(unsafe_code, reason = "kernels are run on memory that is looked at")]

use gantry_cpu_device::{Argument, Devices, Error, Kernel, Memory, POCL, Parameter, flat};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/device")
}

/// None where there is no PoCL, which `GANTRY_REQUIRE_OPENCL=1` makes a failure.
fn devices() -> Option<&'static Devices> {
    static OPENED: OnceLock<Result<Devices, Error>> = OnceLock::new();
    match OPENED.get_or_init(|| Devices::open(POCL, 2)) {
        Ok(devices) => Some(devices),
        Err(why) => {
            assert!(std::env::var_os("GANTRY_REQUIRE_OPENCL").is_none_or(|v| v != "1"), "{why}");
            eprintln!("not run: {why}");
            None
        }
    }
}

fn kernel(devices: &Devices, file: &str, name: &str) -> Kernel {
    let text = flat(&sources().join(file)).expect("a source");
    // A look takes a processor about as long.
    let options = "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt -D LOOK=10";
    devices.build_source(file, &text, options).expect("it builds").kernel(name).expect("it is there")
}

fn words(memory: &Memory) -> *mut u32 {
    std::ptr::with_exposed_provenance_mut(memory.address())
}

/// Words of the end of a slot, where its count is, and bytes of a slot.
const END: usize = 16;
const COUNT: usize = 8;
const SLOT: usize = 16384;

/// Two threads, one for each card: the kernels wait for each other, in both directions, many times over.
#[test]
fn kernels_of_two_cards_meet() {
    let Some(devices) = devices() else { return };
    let send = kernel(devices, "exchange.c", "gantry_exchange_send");
    let receive = kernel(devices, "exchange.c", "gantry_exchange_receive");
    assert_eq!((send.group(), send.parameters().len()), ([256, 1, 1], 19));
    assert_eq!(send.parameters()[10], Parameter::Address);
    assert_eq!(send.parameters()[11], Parameter::Value(8));
    let (slots, rounds) = (3, 200);
    let bytes = slots * SLOT;
    let zeroed = |bytes: usize| {
        let memory = devices.memory(bytes, 256).expect("memory");
        // SAFETY: as many bytes were just allocated.
        unsafe { words(&memory).write_bytes(0, bytes / 4) };
        memory
    };
    let (from, to, mailbox) = (zeroed(bytes + 256), zeroed(bytes + 256), zeroed(bytes));
    let ends = [zeroed(slots * END * 4), zeroed(slots * END * 4)];
    let (trouble, report) = ([zeroed(256), zeroed(256)], [zeroed(256), zeroed(256)]);
    let run = |card: usize, kernel: &Kernel, data: &Memory| {
        let queue = devices.queue(card).expect("a queue");
        let at = |memory: &Memory| Argument::Address(memory.address() as u64);
        // From the inside of an allocation.
        let mut args = vec![Argument::Address(data.address() as u64 + 64)];
        args.extend([Argument::Address(0); 5]);
        args.extend([
            at(&mailbox),
            at(&ends[card]),
            at(&ends[1 - card]),
            at(&trouble[card]),
            at(&report[card]),
        ]);
        let longs: [[u8; 8]; 8] = [bytes as u64, 0, 0, 0, 0, 0, 60_000_000_000, 7].map(u64::to_ne_bytes);
        args.extend(longs.iter().map(|n| Argument::Value(n)));
        // SAFETY: all memory lives until the threads have ended, and is as large as the kernel wants it.
        unsafe { queue.run(kernel, [slots as u32, 1, 1], &args) }.expect("it runs");
    };
    let start = Instant::now();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for round in 0..rounds {
                // SAFETY: nobody else touches it; the kernel is past it when `run` returns.
                unsafe { words(&from).add(16).write(round) };
                run(0, &send, &from);
            }
        });
        threads.spawn(|| {
            for round in 0..rounds {
                run(1, &receive, &to);
                // SAFETY: as above.
                assert_eq!(unsafe { words(&to).add(16).read() }, round);
            }
        });
    });
    eprintln!("{rounds} messages took {:?}", start.elapsed());
    for end in &ends {
        for slot in 0..slots {
            // SAFETY: it lies in the memory, and all threads have ended.
            assert_eq!(unsafe { words(end).add(slot * END + COUNT).read() }, rounds);
        }
    }
    for (trouble, report) in trouble.iter().zip(&report) {
        // SAFETY: as above.
        assert_eq!(unsafe { (words(trouble).read(), words(report).read()) }, (0, 0));
    }
}

/// Memory of the host that OpenCL knows nothing of: PoCL's kernels are functions of this process.
#[test]
fn plain_memory_of_the_host_will_do() {
    let Some(devices) = devices() else { return };
    let kernel = kernel(devices, "exchange.c", "gantry_exchange_send");
    let queue = devices.queue(0).expect("a queue");
    let from: Vec<u32> = (0..1024).collect();
    let mut words = vec![0u32; 4096];
    let mut ends = [[0u32; END]; 2];
    let (mut trouble, mut report) = (0u32, 0u64);
    let mut args = vec![Argument::Address(from.as_ptr().expose_provenance() as u64)];
    args.extend([Argument::Address(0); 5]);
    args.push(Argument::Address(words.as_mut_ptr().expose_provenance() as u64));
    let [own, far] = &mut ends;
    args.push(Argument::Address(own.as_mut_ptr().expose_provenance() as u64));
    args.push(Argument::Address(far.as_mut_ptr().expose_provenance() as u64));
    args.push(Argument::Address((&raw mut trouble).expose_provenance() as u64));
    args.push(Argument::Address((&raw mut report).expose_provenance() as u64));
    let longs: [[u8; 8]; 8] = [4096, 0, 0, 0, 0, 0, 1_000_000, 7].map(u64::to_ne_bytes);
    args.extend(longs.iter().map(|n| Argument::Value(n)));
    // SAFETY: all of it lives, and is as large as the kernel wants it.
    unsafe { queue.run(&kernel, [1, 1, 1], &args) }.expect("it runs");
    assert_eq!(words[..1024], from);
    assert_eq!((ends[0][COUNT], ends[1][0], trouble, report), (1, 1, 0, 0));
}

#[test]
fn what_is_not_a_kernels_is_refused() {
    let Some(devices) = devices() else { return };
    let kernel = kernel(devices, "sample.c", "gantry_argmax");
    let queue = devices.queue(0).expect("a queue");
    let run = |args: &[Argument<'_>], grid: [u32; 3]| {
        // SAFETY: nothing of this comes to run.
        unsafe { queue.run(&kernel, grid, args) }.expect_err("nothing that runs").to_string()
    };
    let address = Argument::Address(0);
    assert!(run(&[address; 3], [1; 3]).contains("3 arguments for 4"));
    assert!(run(&[address; 4], [1; 3]).contains("argument 3 is Address(0), the kernel takes Value(4)"));
    assert!(run(&[address, address, address, Argument::Value(&[0; 8])], [1; 3]).contains("argument 3"));
    assert!(run(&[address, address, address, Argument::Value(&[0; 4])], [0, 1, 1]).contains("[0, 1, 1]"));
    let error = devices.build_source("wrong.c", "__kernel void f() { g(); }", "").expect_err("no program");
    assert!(matches!(&error, Error::Build { log, .. } if log.contains('g')), "{error}");
    let none = Devices::open("No such platform", 1).expect_err("no platform");
    assert!(none.to_string().contains(POCL), "{none}");
}
