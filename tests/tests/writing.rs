//! Writing: kills, signals, full disks, odd paths. Nothing half-written ever has the final name.

use gantry_tests::{binary, fixtures, run, run_ok};
use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn args<'a>(input: &'a Path, output: &'a Path, more: &'a [&'a str]) -> Vec<&'a OsStr> {
    let head: [&OsStr; 4] = ["convert".as_ref(), input.as_os_str(), "-o".as_ref(), output.as_os_str()];
    head.into_iter().chain(more.iter().map(OsStr::new)).collect()
}

fn model() -> PathBuf {
    fixtures("smollm2").join("smollm2-F32.gguf")
}

/// Starts a conversion and waits until its journal lists finished blobs.
fn start_and_wait_for_journal(input: &Path, output: &Path) -> Child {
    let mut child = Command::new(binary("gantry"))
        .args(args(input, output, &["--threads", "1", "--sync-bytes", "1000000"]))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("gantry starts");
    let journal = PathBuf::from(format!("{}.partial.journal", output.display()));
    let begun = Instant::now();
    loop {
        let lines = std::fs::read_to_string(&journal).map_or(0, |t| t.lines().count());
        if lines > 12 {
            return child;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "no journal");
        if let Some(status) = child.try_wait().expect("a child") {
            panic!(
                "ended with {status} before it could be stopped; {} exists: {}",
                journal.display(),
                journal.exists()
            );
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_killed_conversion_resumes_to_the_same_bytes() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let (whole, resumed) = (scratch.path().join("whole.gantry"), scratch.path().join("resumed.gantry"));
    run_ok("gantry", &args(&model(), &whole, &[]));
    let mut child = start_and_wait_for_journal(&model(), &resumed);
    child.kill().expect("kill");
    child.wait().expect("a child");
    assert!(!resumed.exists(), "half a file has the final name");
    let second = run("gantry", &args(&model(), &resumed, &[]));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(second.status.success(), "{said}");
    assert!(said.to_lowercase().contains("resum"), "nothing says that it resumed: {said}");
    assert!(std::fs::read(&whole).expect("bytes") == std::fs::read(&resumed).expect("bytes"), "other bytes");
    let left: Vec<_> = std::fs::read_dir(scratch.path())
        .expect("folder")
        .filter_map(|e| Some(e.ok()?.file_name()))
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn a_changed_source_or_option_is_not_resumed() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let (copy, out) = (scratch.path().join("copy.gguf"), scratch.path().join("out.gantry"));
    std::fs::copy(model(), &copy).expect("a copy");
    let mut child = start_and_wait_for_journal(&copy, &out);
    child.kill().expect("kill");
    child.wait().expect("a child");
    let other = run("gantry", &args(&copy, &out, &["--recipe", "lossless"]));
    assert!(!other.status.success() && !out.exists(), "another recipe was resumed");
    assert!(String::from_utf8_lossy(&other.stderr).contains("--no-resume"));
    // The source changes but keeps its time stamp: found by hash.
    let modified = std::fs::metadata(&copy).expect("metadata").modified().expect("a time");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&copy).expect("the copy");
    use std::os::unix::fs::FileExt;
    // The lowest bit of one value in every MiB, so that what was packed already is among them.
    for at in (1u64 << 20..file.metadata().expect("metadata").len()).step_by(1 << 20) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("a byte");
        file.write_all_at(&[byte[0] ^ 1], at).expect("a byte");
    }
    file.set_modified(modified).expect("a time");
    drop(file);
    let changed = run("gantry", &args(&copy, &out, &[]));
    let said = String::from_utf8_lossy(&changed.stderr).into_owned();
    assert!(!changed.status.success() && !out.exists(), "a changed source was resumed: {said}");
    assert!(said.contains("--no-resume"), "{said}");
    run_ok("gantry", &args(&copy, &out, &["--no-resume"]));
    run_ok("gantry", &["verify".as_ref(), out.as_os_str(), "--against".as_ref(), copy.as_os_str()]);
}

#[test]
fn signals_end_cleanly_with_their_codes() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let out = scratch.path().join(format!("{name}.gantry"));
        let mut child = start_and_wait_for_journal(&model(), &out);
        let killed =
            Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().expect("kill");
        assert!(killed.success());
        let status = child.wait().expect("a child");
        assert_eq!(status.code(), Some(code), "SIG{name}: {status}, signal {:?}", status.signal());
        assert!(!out.exists(), "SIG{name}: half a file has the final name");
    }
}

#[test]
fn output_that_is_the_input_is_refused() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let folder = fixtures("tiny");
    let input = scratch.path().join("in.gguf");
    std::fs::copy(folder.join("tiny-llama-Q8_0.gguf"), &input).expect("a copy");
    let (soft, hard) = (scratch.path().join("soft.gantry"), scratch.path().join("hard.gantry"));
    std::os::unix::fs::symlink(&input, &soft).expect("a symlink");
    std::fs::hard_link(&input, &hard).expect("a hard link");
    let before = std::fs::read(&input).expect("bytes");
    let dotted = scratch.path().join("./in.gguf");
    for output in [&input, &soft, &hard, &dotted] {
        let result = run("gantry", &args(&input, output, &["--force"]));
        assert_eq!(
            result.status.code(),
            Some(2),
            "{}: {}",
            output.display(),
            String::from_utf8_lossy(&result.stderr)
        );
        assert!(
            std::fs::read(&input).expect("bytes") == before,
            "{}: the input was changed",
            output.display()
        );
    }
    let out = scratch.path().join("out.gantry");
    run_ok("gantry", &args(&input, &out, &[]));
    let first = std::fs::read(&out).expect("bytes");
    assert_eq!(
        run("gantry", &args(&input, &out, &["--recipe", "lossless"])).status.code(),
        Some(2),
        "overwritten"
    );
    assert!(std::fs::read(&out).expect("bytes") == first);
    run_ok("gantry", &args(&input, &out, &["--force"]));
    let two = run(
        "gantry",
        &["convert".as_ref(), input.as_os_str(), hard.as_os_str(), "-o".as_ref(), out.as_os_str()],
    );
    assert_eq!(two.status.code(), Some(2), "several inputs");
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let input = fixtures("tiny").join("tiny-llama-F32.gguf");
    // A private mount needs no privileges inside a user namespace of its own.
    let script = format!(
        "mount -t tmpfs -o size=1m tmpfs {0} && {1} convert {2} -o {0}/out.gantry > /dev/null; code=$?; ls -A {0}; exit $code",
        scratch.path().display(),
        binary("gantry").display(),
        input.display()
    );
    let mut shell = if rustix::process::geteuid().is_root() {
        let mut c = Command::new("unshare");
        c.arg("--mount");
        c
    } else {
        let mut c = Command::new("unshare");
        c.args(["--user", "--map-root-user", "--mount"]);
        c
    };
    let result = shell.args(["sh", "-c", &script]).output().expect("unshare, of util-linux");
    let said = String::from_utf8_lossy(&result.stderr);
    assert_eq!(result.status.code(), Some(6), "{said}");
    assert!(said.contains("available") || said.contains("free"), "{said}");
    assert_eq!(String::from_utf8_lossy(&result.stdout).trim(), "", "left behind");
}

#[test]
fn same_bytes_for_any_number_of_threads_and_simd_width() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let input = fixtures("tiny").join("tiny-llama-BF16.gguf");
    let mut first = None;
    for (threads, simd) in [("1", "portable"), ("8", "portable"), ("2", "auto"), ("3", "auto")] {
        let out = scratch.path().join(format!("{threads}-{simd}.gantry"));
        let mut command = Command::new(binary("gantry"));
        command.args(args(&input, &out, &["--threads", threads]));
        if simd != "auto" {
            command.env("GANTRY_SIMD", simd);
        }
        let result = command.output().expect("gantry starts");
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        let bytes = std::fs::read(&out).expect("bytes");
        assert!(
            *first.get_or_insert_with(|| bytes.clone()) == bytes,
            "{threads} threads, {simd}: other bytes"
        );
    }
}

#[test]
fn memory_stays_bounded_for_a_large_sparse_model() {
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let input = scratch.path().join("sparse.gguf");
    // One BF16 tensor of 1 Gi values, 2 GiB of holes.
    let mut head = b"GGUF".to_vec();
    head.extend(3u32.to_le_bytes());
    head.extend(1u64.to_le_bytes());
    head.extend(1u64.to_le_bytes());
    let text = |out: &mut Vec<u8>, s: &str| {
        out.extend((s.len() as u64).to_le_bytes());
        out.extend(s.as_bytes());
    };
    text(&mut head, "general.architecture");
    head.extend(8u32.to_le_bytes());
    text(&mut head, "llama");
    text(&mut head, "blk.0.ffn_down.weight");
    head.extend(2u32.to_le_bytes());
    head.extend(32768u64.to_le_bytes());
    head.extend(32768u64.to_le_bytes());
    head.extend(30u32.to_le_bytes());
    head.extend(0u64.to_le_bytes());
    head.resize(head.len().next_multiple_of(32), 0);
    let len = head.len() as u64 + (2 << 30);
    std::fs::write(&input, &head).expect("a header");
    std::fs::OpenOptions::new().write(true).open(&input).and_then(|f| f.set_len(len)).expect("holes");
    let out = scratch.path().join("out.gantry");
    let script = format!(
        "ulimit -v 2000000; exec {} convert --allow-incomplete {} -o {}",
        binary("gantry").display(),
        input.display(),
        out.display()
    );
    let result = Command::new("sh").args(["-c", &script]).output().expect("sh");
    let said = String::from_utf8_lossy(&result.stderr);
    assert!(result.status.success(), "{said}");
    let said = String::from_utf8_lossy(&result.stdout);
    let peak =
        said.lines().find(|l| l.to_lowercase().contains("peak")).unwrap_or_else(|| panic!("no peak: {said}"));
    let mib: f64 = peak
        .split_whitespace()
        .zip(peak.split_whitespace().skip(1))
        .find_map(|(n, unit)| unit.starts_with("MiB").then(|| n.parse().ok())?)
        .unwrap_or_else(|| panic!("no MiB in {peak:?}"));
    assert!(mib <= 512.0, "{peak}");
}
