//! Files of token counts: each format's golden form, hostile ones, sums, and counts of another model.

mod sample;

use gantry_formats::block::GgmlType;
use gantry_formats::container::Container;
use gantry_formats::exit::{Exit, ExitCode};
use gantry_formats::gguf::{Gguf, GgufWriter, Value};
use gantry_formats::hotness::{self, Format, Hotness, HotnessFault, LayerCounts, Reading, RoutedModel};
use sample::Sample;
use std::path::PathBuf;
use tempfile::TempDir;

const JSON: &str = r#"{
  "schema": "gantry-hotness",
  "version": 1,
  "layers": 3,
  "experts": 4,
  "tokens": 10,
  "counts": [
    { "layer": 1, "counts": [10, 0, 4, 6] },
    { "layer": 2, "counts": [5, 5, 5, 5] }
  ]
}
"#;

const CSV: &str = "layer_id,expert_id,count\n1,0,10\n1,2,4\n1,3,6\n2,0,5\n2,1,5\n2,2,5\n2,3,5\n";

fn golden() -> Vec<LayerCounts> {
    let layer = |layer, counts: [u64; 4]| LayerCounts { layer, counts: counts.to_vec() };
    vec![layer(1, [10, 0, 4, 6]), layer(2, [5, 5, 5, 5])]
}

fn model() -> RoutedModel {
    let fingerprint = Some("ab".repeat(32));
    RoutedModel { fingerprint, layers: 3, experts: 4, used: 2, routed: vec![1, 2] }
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).expect("write");
        path
    }

    fn read(&self, bytes: impl AsRef<[u8]>) -> Result<Reading, hotness::HotnessError> {
        hotness::read(&[self.write("counts", bytes)])
    }
}

/// An importance matrix with these counts.
fn imatrix(counts: &[(&str, Vec<f32>)]) -> Vec<u8> {
    let mut writer = GgufWriter::new(3);
    writer.set("general.type", Value::Str(b"imatrix"));
    for (name, values) in counts {
        writer.tensor(format!("{name}.counts"), &[1, values.len() as u64], GgmlType::F32).expect("a tensor");
    }
    let header = writer.finish().expect("a header");
    let mut file = vec![0; header.file_len() as usize];
    file[..header.raw().len()].copy_from_slice(header.raw());
    for (info, (_, values)) in header.tensors().iter().zip(counts) {
        let at = header.range_of(info).start as usize;
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        file[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    file
}

fn golden_imatrix() -> Vec<(&'static str, Vec<f32>)> {
    vec![
        ("blk.0.attn_q.weight", vec![10.0]),
        ("blk.1.ffn_down_exps.weight", vec![10.0, 0.0, 4.0, 6.0]),
        ("blk.1.ffn_gate_exps.weight", vec![10.0, 0.0, 4.0, 6.0]),
        ("blk.2.ffn_up_exps.weight", vec![5.0; 4]),
    ]
}

#[test]
fn all_formats_give_the_same_counts() {
    let folder = Folder::new();
    let forms: [(Format, Vec<u8>, u64); 3] = [
        (Format::Json, JSON.into(), 10),
        (Format::Csv, CSV.into(), 0),
        (Format::Imatrix, imatrix(&golden_imatrix()), 10),
    ];
    for (format, bytes, tokens) in forms {
        let reading = folder.read(bytes).expect("sound");
        assert_eq!(reading.format, format);
        let hotness = Hotness { fingerprint: None, layers: 3, experts: 4, tokens, counts: golden() };
        assert_eq!(reading.hotness, hotness, "{format:?}");
        assert_eq!(reading.notes, [""; 0], "{format:?}");
        let (fitted, warnings) = reading.fit(&model()).expect("of this model");
        assert_eq!(fitted, Hotness { tokens: 10, ..hotness });
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("1 expert was never chosen, in layer 1"), "{warnings:?}");
        assert!(warnings[1].contains("few tokens: down to 5.0"), "{warnings:?}");
        assert_eq!(fitted.to_json(), JSON);
    }
}

#[test]
fn json_is_written_as_it_is_read() {
    let mut hotness = Hotness::from_json(JSON.as_bytes()).expect("sound");
    assert_eq!(hotness.to_json(), JSON);
    hotness.fingerprint = model().fingerprint;
    hotness.counts[0].counts[0] = u64::MAX / 2;
    hotness.tokens = u64::MAX;
    assert_eq!(Hotness::from_json(hotness.to_json().as_bytes()).expect("sound"), hotness);
    let empty = Hotness { counts: Vec::new(), ..hotness };
    assert_eq!(Hotness::from_json(empty.to_json().as_bytes()).expect("sound"), empty);
    let zeros = Hotness::new(&model());
    assert_eq!(zeros.layer(2), Some([0; 4].as_slice()));
    assert_eq!(zeros.layer(0), None);
    let marked = format!("\u{feff}{}", JSON.replace('\n', "\r\n"));
    assert_eq!(Hotness::from_json(marked.as_bytes()).expect("sound").counts, golden());
}

#[test]
fn hostile_json_is_refused_with_the_place() {
    let folder = Folder::new();
    let cases = [
        ("\"tokens\": 10", "\"tokens\": -10", "line 6"),
        ("\"tokens\": 10", "\"tokens\": 1e400", "line 6"),
        ("\"tokens\": 10", "\"tokens\": 18446744073709551616", "line 6"),
        ("\"tokens\": 10", "\"tokens\": 9", "layer 1 expert 0: 10 tokens, 9 were seen"),
        ("[5, 5, 5, 5]", "[5, 5, 5]", "layer 2: 3 counts, expected 4"),
        ("[5, 5, 5, 5]", "[5, 5, 5, 5, 5]", "layer 2: 5 counts, expected 4"),
        ("[5, 5, 5, 5]", "[5, 5, 5, 5.5]", "line 9"),
        ("\"layer\": 2", "\"layer\": 3", "layer 3: the file's model has 3 layers"),
        ("\"layer\": 2", "\"layer\": 1", "layer 1 occurs twice"),
        ("\"layer\": 2", "\"layer\": 4294967296", "line 9"),
        ("\"layers\": 3", "\"layers\": 4097", "at most 4096"),
        ("\"experts\": 4", "\"experts\": 4294967295", "of 16384"),
        ("\"experts\": 4,", "\"experts\": 4, \"experts\": 4,", "duplicate field"),
        ("\"experts\": 4,", "", "missing field `experts`"),
        ("\"layers\": 3", "\"fingerprint\": \"\\u001b[2J\", \"layers\": 3", "64 hex digits"),
        ("gantry-hotness", "other", "\"other\" version 1"),
        ("\"version\": 1", "\"version\": 2", "version 2"),
    ];
    for (from, to, word) in cases {
        let text = JSON.replace(from, to);
        assert_ne!(text, JSON, "{from}");
        let error = folder.read(&text).expect_err(to);
        assert!(error.to_string().contains(word), "{to}: {error}");
        let exit = if word.contains("version") { Exit::Incompatible } else { Exit::Input };
        assert_eq!(error.exit(), exit, "{error}");
    }
    for end in 0..JSON.trim_end().len() {
        folder.read(&JSON[..end]).expect_err("truncated");
    }
    folder.read("{".repeat(100_000)).expect_err("deep");
    let long = folder.write("long", "{");
    let file = std::fs::File::options().write(true).open(&long).expect("open");
    file.set_len(hotness::MAX_TEXT + 1).expect("grow");
    let error = hotness::read(&[long]).expect_err("long");
    assert!(matches!(error.fault, HotnessFault::TooLarge { .. }), "{error}");
}

#[test]
fn csv_may_have_marks_and_carriage_returns_and_must_have_whole_rows() {
    let folder = Folder::new();
    let marked = format!("\u{feff}{}", CSV.replace('\n', "\r\n"));
    assert_eq!(folder.read(marked).expect("sound").hotness.counts, golden());
    assert_eq!(folder.read(CSV.trim_end()).expect("sound").hotness.counts, golden());
    let head = "layer_id,expert_id,count\n";
    for (rows, word) in [
        ("0,0,-1", "line 2: \"0,0,-1\", expected layer, expert and count"),
        ("0,0,+1", "line 2"),
        ("0,0,1.5", "line 2"),
        ("0,0,1e3", "line 2"),
        ("0,0,18446744073709551616", "line 2"),
        ("0,0", "line 2"),
        ("0,0,", "line 2"),
        ("0,0,1,1", "line 2"),
        ("0,0,1\n\n0,1,1", "line 3"),
        ("0,0,1\n0,1,1\n0,0,2", "line 4: layer 0 expert 0 occurs twice"),
        ("4096,0,1", "below 4096"),
        ("0,16384,1", "below 4096 and 16384"),
        ("99999999999,0,1", "below 4096"),
        ("0,0,\u{1b}[2J", "\\u{1b}"),
        ("0,0,18446744073709551615\n0,1,1", "does not fit 64 bits"),
        ("", "no row"),
    ] {
        let error = folder.read(format!("{head}{rows}")).expect_err(rows);
        assert!(error.to_string().contains(word), "{rows}: {error}");
        assert_eq!(error.exit(), Exit::Input);
    }
    folder.read("layer_id,expert,count\n0,0,1\n").expect_err("another title");
    folder.read(b"layer_id,expert_id,count\n0,0,\xff\n").expect_err("no text");
    // Few rows, each of another layer, that would make a table of gigabytes.
    let far: String = (0..4096).map(|layer| format!("{layer},4095,1\n")).collect();
    let error = folder.read(format!("{head}{far}")).expect_err("too many");
    assert!(error.to_string().contains("more than 4194304 counts"), "{error}");
    // Two files that are small alone, one of many layers and one of many experts.
    let many: String = (0..4096).map(|layer| format!("{layer},0,1\n")).collect();
    let files = [("a.csv", many), ("b.csv", "0,16383,1\n".into())];
    let files = files.map(|(name, rows)| folder.write(name, format!("{head}{rows}")));
    let error = hotness::read(&files).expect_err("too many together");
    assert!(error.to_string().contains("more than 4194304 counts"), "{error}");
}

#[test]
fn files_of_ranks_are_summed() {
    let folder = Folder::new();
    let head = "layer_id,expert_id,count\n";
    let a = folder.write("rank0.csv", format!("{head}0,0,3\n2,1,4\n"));
    let b = folder.write("rank1.csv", format!("{head}0,0,5\n1,3,6\n"));
    let sum = hotness::read(&[a.clone(), b]).expect("sound");
    assert_eq!((sum.hotness.layers, sum.hotness.experts, sum.hotness.counts.len()), (3, 4, 3));
    assert_eq!(sum.hotness.layer(0), Some([8, 0, 0, 0].as_slice()));
    assert_eq!(sum.hotness.layer(1), Some([0, 0, 0, 6].as_slice()));
    assert_eq!(sum.hotness.layer(2), Some([0, 4, 0, 0].as_slice()));
    assert_eq!((sum.files.len(), sum.notes.len()), (2, 0));
    let twice = hotness::read(&[a.clone(), a.clone()]).expect("sound");
    assert!(twice.notes[0].contains("rank0.csv and rank0.csv hold the same counts"), "{:?}", twice.notes);
    let most = folder.write("most.csv", format!("{head}0,0,{}\n", u64::MAX));
    let error = hotness::read(&[a.clone(), most]).expect_err("too much");
    assert!(error.to_string().contains("most.csv: the sum of layer 0 expert 0 does not fit"), "{error}");
    let other = folder.write("other.json", JSON);
    let error = hotness::read(&[a, other.clone()]).expect_err("two formats");
    assert!(matches!(error.fault, HotnessFault::Mixed { .. }), "{error}");
    let smaller = folder.write("smaller.json", JSON.replace("\"layers\": 3", "\"layers\": 4"));
    let error = hotness::read(&[other, smaller]).expect_err("two models");
    let text = error.to_string();
    assert!(text.contains("smaller.json: 4 layers, ") && text.contains("other.json has 3"), "{error}");
    hotness::read(&[]).expect_err("no file");
}

/// Ranks write files of the same name into folders of their own.
#[test]
fn an_error_names_the_folder_of_its_file() {
    let folder = Folder::new();
    let paths = ["rank0", "rank1"].map(|rank| {
        std::fs::create_dir(folder.0.path().join(rank)).unwrap();
        let rows = if rank == "rank0" { "0,0,3" } else { "0,x,3" };
        folder.write(&format!("{rank}/counts.csv"), format!("layer_id,expert_id,count\n{rows}\n"))
    });
    let error = hotness::read(&paths).expect_err("no number").to_string();
    assert!(error.starts_with(&format!("{}: line 2", paths[1].display())), "{error}");
    let absent = folder.0.path().join("rank2/counts.csv");
    let error = hotness::read(&[paths[0].clone(), absent.clone()]).expect_err("no file").to_string();
    assert!(error.starts_with(&format!("{}: cannot read it", absent.display())), "{error}");
    let other = folder.write("rank1/counts.csv", JSON);
    let error = hotness::read(&[paths[0].clone(), other.clone()]).expect_err("two formats").to_string();
    assert!(error.contains(&format!("{} is", paths[0].display())), "{error}");
    let sound = hotness::read(std::slice::from_ref(&other)).expect("sound");
    assert_eq!(sound.files, [other.display().to_string()]);
}

#[test]
fn an_imatrix_must_count_whole_tokens_of_experts() {
    let folder = Folder::new();
    let with = |index: usize, values: &[f32]| {
        let mut counts = golden_imatrix();
        counts[index].1 = values.to_vec();
        folder.read(imatrix(&counts))
    };
    for bad in [-1.0, 0.5, f32::NAN, f32::INFINITY, 2f32.powi(64)] {
        let error = with(1, &[1.0, bad, 1.0, 1.0]).expect_err("no count");
        assert!(error.to_string().contains("ffn_down_exps.weight.counts: count 1 is"), "{error}");
    }
    assert!(with(2, &[1.0; 3]).expect_err("3 and 4").to_string().contains("has 3 counts"));
    assert!(with(3, &[1.0; 3]).expect_err("3 and 4").to_string().contains("3 experts"));
    let error = with(1, &[2f32.powi(63), 2f32.powi(63), 0.0, 0.0]).map(|r| r.notes);
    assert!(error.expect_err("sum").to_string().contains("does not fit"));
    let differ = with(2, &[10.0, 0.0, 5.0, 6.0]).expect("sound");
    assert!(differ.notes[0].contains("expert 2: 5 and 4 tokens"), "{:?}", differ.notes);
    assert_eq!(differ.hotness.counts, golden());
    let full = with(0, &[16_777_216.0]).expect("sound");
    assert!(full.notes[0].contains("not exact"), "{:?}", full.notes);
    let dense = folder.read(imatrix(&golden_imatrix()[..1])).expect_err("dense");
    assert!(dense.to_string().contains("without counts of experts"), "{dense}");
    let whole = imatrix(&golden_imatrix());
    for end in 0..whole.len() - 32 {
        folder.read(&whole[..end]).expect_err("truncated");
    }
    folder.read(&Sample::new().gguf).expect_err("a model");
    folder.read(b"\x89GTR\r\n\x1a\n").expect_err("a container");
}

#[test]
fn counts_of_another_model_are_refused() {
    let folder = Folder::new();
    let refused = |bytes: &[u8], model: &RoutedModel, word: &str| {
        let error = folder.read(bytes).expect("sound").fit(model).expect_err(word);
        assert!(error.to_string().contains(word), "{error}");
        assert!(error.to_string().contains("/counts: "), "{error}");
        assert_eq!(error.exit(), Exit::Input);
    };
    let matrix = imatrix(&golden_imatrix());
    let (json, csv, matrix) = (JSON.as_bytes(), CSV.as_bytes(), matrix.as_slice());
    let of =
        |layers, experts, routed: &[u32]| RoutedModel { layers, experts, routed: routed.into(), ..model() };
    refused(json, &of(4, 4, &[1, 2]), "layers: found 3, the model has 4");
    for bytes in [csv, matrix] {
        refused(bytes, &of(2, 4, &[1]), "layers: found layer 2, the model has 2");
        // They do not say how many layers there are.
        let (hotness, warnings) =
            folder.read(bytes).expect("sound").fit(&of(9, 4, &[1, 2, 8])).expect("fits");
        assert_eq!(hotness.layer(8), Some([0; 4].as_slice()));
        assert!(warnings.iter().any(|w| w == "no token was seen in layer 8"), "{warnings:?}");
    }
    for bytes in [json, matrix] {
        refused(bytes, &of(3, 5, &[1, 2]), "experts of a layer: found 4, the model has 5");
    }
    folder.read(csv).expect("sound").fit(&of(3, 5, &[1, 2])).expect("an expert without a row was not chosen");
    refused(csv, &of(3, 3, &[1, 2]), "experts of a layer: found expert 3, the model has 3");
    for bytes in [json, csv, matrix] {
        refused(bytes, &of(3, 4, &[0, 2]), "found layer 1, the model has no experts in that layer");
    }
    let named = |f: &str| JSON.replace("\"layers\"", &format!("\"fingerprint\": \"{f}\",\n  \"layers\""));
    refused(
        named(&"cd".repeat(32)).as_bytes(),
        &model(),
        "fingerprint of the routers: found cdcdcdcdcdcdcdcd…",
    );
    folder.read(named(&"AB".repeat(32))).expect("sound").fit(&model()).expect("the same in capitals");
}

#[test]
fn a_fingerprint_is_that_of_the_routers_wherever_they_are() {
    let folder = Folder::new();
    let of = |router: &[f32], expert: u64, name: &str| {
        let mut tensors = sample::source();
        let bytes = router.iter().flat_map(|v| v.to_le_bytes()).collect();
        let count = tensors.iter().position(|t| t.0 == "blk.0.empty.weight").expect("there");
        tensors[count] = ("blk.0.ffn_gate_inp.weight", GgmlType::F32, vec![64, 3], bytes);
        let down = tensors.iter_mut().find(|t| t.0 == "blk.0.ffn_down_exps.weight").expect("there");
        down.3 = sample::values(down.1, down.2.iter().product(), expert);
        let gguf = Gguf::open(&folder.write(name, sample::gguf(&tensors, 0).1)).expect("a GGUF");
        RoutedModel::of_gguf(&gguf).expect("experts")
    };
    let router: Vec<f32> = (0..192).map(|i| i as f32).collect();
    let a = of(&router, 1, "a.gguf");
    assert_eq!((a.layers, a.experts, a.routed.as_slice()), (1, 3, [0].as_slice()));
    assert_eq!(a, of(&router, 2, "b.gguf"), "other experts, another file");
    let mut changed = router.clone();
    changed[191] = 0.0;
    assert_ne!(a.fingerprint, of(&changed, 1, "a.gguf").fingerprint);
    // Written out plainly from the description.
    let mut input = Vec::new();
    let mut put = |n: u64, text: &str| input.extend([&n.to_le_bytes(), text.as_bytes()].concat());
    put(5, "llama");
    put(25, "blk.0.ffn_gate_inp.weight");
    [2, 64, 3].into_iter().for_each(|n| put(n, ""));
    let bytes: Vec<u8> = router.iter().flat_map(|v| v.to_le_bytes()).collect();
    input.extend(gantry_formats::hash::hash(&bytes));
    let expected = gantry_formats::hash::hex(&blake3::derive_key("gantry 1 routers", &input));
    assert_eq!(a.fingerprint, Some(expected));
    // A container has what its source had, on whatever cards.
    let sample = Sample::new();
    let container = Container::open(&sample.write(folder.0.path())).expect("opens");
    let gguf = Gguf::open(&folder.write("s.gguf", &sample.gguf)).expect("a GGUF");
    assert_eq!(
        RoutedModel::of_container(&container).expect("experts"),
        RoutedModel::of_gguf(&gguf).expect("experts")
    );
}
