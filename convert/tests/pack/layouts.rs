//! Recipes and targets: what each stores, that it comes back, and that another target's container is a permutation.

use super::source::*;
use gantry_formats::block::GgmlType;
use gantry_formats::container::Container;
use gantry_formats::gguf::{GgufWriter, Value};
use gantry_formats::target::TARGETS;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(crate) struct Room(TempDir);

impl Room {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Converts `m.gguf`, checks every stored byte in scalar code, and against the source by `gantry verify`.
    pub(crate) fn convert(&self, output: &str, more: &[&str]) -> Container {
        let (input, output) = (self.text("m.gguf"), self.text(output));
        succeed(&[&["convert", &input, "-o", &output, "--allow-incomplete", "--force"], more].concat());
        check(Path::new(&output), Path::new(&input));
        succeed(&["verify", &output, "--against", &input]);
        Container::open(Path::new(&output)).expect("a sound container")
    }
}

/// Tensors of a model with experts whose feed-forward tiles by 256 in one direction, and whose rows do not tile.
fn tensors(ty: GgmlType) -> Vec<Tensor> {
    let t = |name: &str, dims: &[u64]| tensor(format!("{name}.weight"), dims, ty);
    vec![
        t("token_embd", &[256, 40]),
        t("blk.0.attn_q", &[256, 64]),
        t("blk.0.attn_k", &[256, 32]),
        t("blk.0.attn_v", &[256, 32]),
        t("blk.0.attn_output", &[64, 256]),
        tensor("blk.0.attn_norm.weight", &[256], GgmlType::F32),
        t("blk.0.ffn_gate_exps", &[256, 96, 3]),
        t("blk.0.ffn_up_exps", &[256, 96, 3]),
        t("blk.0.ffn_down_exps", &[96, 256, 3]),
        t("blk.1.ffn_down_exps", &[512, 17, 2]),
        t("blk.1.attn_output", &[160, 33]),
        t("output", &[256, 40]),
    ]
}

pub(crate) fn keys(w: &mut GgufWriter) {
    w.set("general.architecture", Value::Str(b"none"));
    w.set("none.expert_count", Value::U32(3));
}

pub(crate) fn layouts(c: &Container) -> BTreeMap<&str, String> {
    let m = c.manifest();
    let layout = |i: u32| c.layouts()[i as usize].to_string();
    let tensors = m.tensors.iter().map(|t| (t.name.as_str(), layout(t.layout)));
    let banks = m.banks.iter().flat_map(|b| &b.matrices).map(|x| (x.name.as_str(), layout(x.layout)));
    tensors.chain(banks).collect()
}

#[test]
fn every_recipe_of_every_source_type_is_what_the_definitions_give() {
    let room = Room::new();
    let types =
        [GgmlType::F32, GgmlType::BF16, GgmlType::F16, GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q5_0];
    for ty in types.into_iter().chain([GgmlType::IQ4_NL]) {
        write(&room.path("m.gguf"), keys, &tensors(ty), 11);
        for recipe in ["balanced", "compact", "w8a8", "q8", "lossless"] {
            let c = room.convert("m.gantry", &["--recipe", recipe]);
            let exact = c.manifest().source_tensors.iter().all(|t| t.exact);
            // Of the others `balanced` rounds the embeddings at least.
            let want = recipe == "lossless" || ty == GgmlType::Q8_0 && ["balanced", "q8"].contains(&recipe);
            assert_eq!(exact, want, "{ty} {recipe}");
        }
    }
}

#[test]
fn recipes_give_roles_their_layouts() {
    let room = Room::new();
    write(&room.path("m.gguf"), keys, &tensors(GgmlType::BF16), 12);
    let c = room.convert("m.gantry", &["--recipe", "compact"]);
    let compact = layouts(&c);
    assert_eq!(compact["blk.0.ffn_gate_exps.weight"], "e8.planar:rotated");
    assert_eq!(compact["blk.1.ffn_down_exps.weight"], "e8.planar:rotated");
    assert_eq!(compact["blk.0.ffn_down_exps.weight"], "i8.frag.vnni16:block32", "96 does not tile by 256");
    assert_eq!(compact["blk.0.attn_q.weight"], "i8.frag.vnni16:block32");
    assert_eq!(compact["token_embd.weight"], "q8_0.split");
    assert_eq!(compact["blk.0.attn_norm.weight"], "raw.f32");
    assert!(
        c.manifest()
            .warnings
            .iter()
            .any(|w| w.contains("i8.block32 instead of e8.planar:rotated: row of 96"))
    );
    assert_eq!(c.manifest().options["e8_scheme"], "default");

    let nv = room.convert("m.gantry", &["--recipe", "w8a8", "--target", "cuda:sm_90"]);
    assert_eq!(layouts(&nv)["output.weight"], "i8.frag.nv_a64:channel");
    let hygon = room.convert("m.gantry", &["--target", "hip:gfx928"]);
    let hygon = layouts(&hygon);
    assert_eq!(hygon["blk.0.attn_k.weight"], "i8.kmajor:block32");
    assert_eq!(hygon["blk.0.attn_output.weight"], "i8.frag.slot8:block32");
    assert_eq!(hygon["blk.0.ffn_down_exps.weight"], "i8.nmajor:block32");

    let set = room.convert(
        "m.gantry",
        &["--set", "ffn_*_exps=e8", "--set", "blk.0.ffn_down_exps.weight=keep", "--set", "output=e8.block98"],
    );
    let set = layouts(&set);
    assert_eq!(set["blk.0.ffn_up_exps.weight"], "e8.planar");
    assert_eq!(set["blk.0.ffn_down_exps.weight"], "raw.bf16");
    assert_eq!(set["output.weight"], "e8.block98");
}

#[test]
fn what_a_recipe_or_an_override_asks_for_in_vain_is_refused_by_name() {
    let room = Room::new();
    write(&room.path("m.gguf"), keys, &tensors(GgmlType::BF16), 12);
    let (input, output) = (room.text("m.gguf"), room.text("m.gantry"));
    let base = ["convert", &input, "-o", &output, "--allow-incomplete"];
    let set = |what: &str, code: i32, words: &[&str]| {
        refuse(&[&base[..], &["--set", what]].concat(), code, words);
    };
    set("attn_x=e8", 2, &["attn_x", "no tensor and no role"]);
    set("blk.0.ffn_down_exps.weight=e8", 2, &["blk.0.ffn_down_exps.weight", "96 % 256 != 0"]);
    set("attn_q=i8.frag.ck16:block32", 2, &["unknown layout i8.frag.ck16:block32"]);
    set("attn_q=q9", 2, &["unknown layout q9", "e8:rotated"]);
    set("attn_norm=i8.channel", 2, &["stays exact"]);
    set("attn_nor*=i8.channel", 2, &["no tensor and no role"]);
    set("token_embd=e8:rotated", 2, &["rows are read one by one"]);
    set("attn_q=gguf.q4_k", 2, &["the source is BF16"]);
    refuse(&[&base[..], &["--target", "cuda:sm_70"]].concat(), 5, &["cuda:sm_70", "cuda:sm_90"]);
    refuse(&[&base[..], &["--recipe", "tiny"]].concat(), 2, &["tiny", "balanced"]);
    let own = room.text("own.toml");
    fs::write(&own, "[[rule]]\nkind = 'experts'\nlayout = 'e9'\n").expect("written");
    refuse(&[&base[..], &["--recipe", &own]].concat(), 2, &["own.toml", "rule 1", "e9"]);
    refuse(&[&base[..], &["--imatrix", &input]].concat(), 3, &["no importance matrix"]);
    assert!(!room.path("m.gantry").exists());
    fs::write(&own, "[[rule]]\nkind = 'experts'\nlayout = ['e8', 'keep']\n").expect("written");
    let c = room.convert("m.gantry", &["--recipe", &own]);
    assert_eq!(
        (c.manifest().recipe.as_str(), layouts(&c)["blk.0.ffn_down_exps.weight"].as_str()),
        ("own.toml", "raw.bf16")
    );
    // A container is no source.
    let text = room.text("m.gantry");
    refuse(&["convert", &text, "-o", &room.text("x.gantry")], 3, &["container already", "gantry replan"]);
}

#[test]
fn another_target_is_a_permutation() {
    let room = Room::new();
    write(&room.path("m.gguf"), keys, &tensors(GgmlType::BF16), 13);
    for recipe in ["balanced", "w8a8", "compact"] {
        let direct: Vec<Vec<u8>> = TARGETS
            .iter()
            .map(|t| {
                room.convert("m.gantry", &["--recipe", recipe, "--target", t.name]);
                fs::read(room.path("m.gantry")).expect("written")
            })
            .collect();
        let (mut from, mut to) = (room.text("a.gantry"), room.text("b.gantry"));
        fs::write(&from, &direct[0]).expect("written");
        // A walk through all targets and back: each step starts from what the last one made.
        for i in (0..TARGETS.len()).chain([7, 3, 0]) {
            succeed(&["replan", &from, "--target", TARGETS[i].name, "-o", &to, "--force"]);
            assert!(fs::read(&to).expect("written") == direct[i], "{recipe} {}", TARGETS[i].name);
            std::mem::swap(&mut from, &mut to);
        }
    }
}

#[test]
fn lossless_containers_give_their_source_back() {
    let room = Room::new();
    let types =
        [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q5_0, GgmlType::IQ4_NL, GgmlType::Q4_K, GgmlType::IQ3_XXS];
    for ty in types.into_iter().chain([GgmlType::BF16]) {
        let list = match ty.block_len() {
            256 => tensors(ty).into_iter().filter(|t| t.dims[0] % 256 == 0).collect(),
            _ => tensors(ty),
        };
        write(&room.path("m.gguf"), keys, &list, 14);
        for target in ["cpu", "hip:gfx928", "cuda:sm_90"] {
            let c = room.convert("m.gantry", &["--recipe", "lossless", "--target", target]);
            assert!(c.manifest().source_tensors.iter().all(|t| t.exact), "{ty}");
            succeed(&["export", &room.text("m.gantry"), "-o", &room.text("back.gguf"), "--force"]);
            let (want, found) = (fs::read(room.path("m.gguf")), fs::read(room.path("back.gguf")));
            assert!(want.expect("written") == found.expect("written"), "{ty} {target}");
        }
    }
}

#[test]
fn merged_hyper_connections_are_split_into_their_parts() {
    let room = Room::new();
    for (ty, inject) in
        [(GgmlType::BF16, "raw.bf16"), (GgmlType::Q8_0, "q8_0.split"), (GgmlType::F32, "raw.f32")]
    {
        let list = [
            tensor("blk.0.hc_attn_norm.weight", &[128], GgmlType::F32),
            tensor("blk.0.hc_attn_down_inject.weight", &[128, 36], ty),
            tensor("blk.0.hc_attn_up.weight", &[32, 128], ty),
            tensor("blk.0.hc_ffn_down.weight", &[128, 32], ty),
            tensor("blk.0.hc_ffn_inject.weight", &[128, 4], ty),
            tensor("blk.1.nextn.hc_head_down.weight", &[128, 32], ty),
            tensor("output_hc_up.weight", &[32, 128], ty),
            tensor("output_hc_fn.weight", &[128, 4], ty),
        ];
        write(&room.path("m.gguf"), keys, &list, 15);
        let c = room.convert("m.gantry", &[]);
        let found = layouts(&c);
        for split in [
            "blk.0.hc_attn_down",
            "blk.0.hc_attn_up",
            "blk.0.hc_ffn_down",
            "blk.1.nextn.hc_head_down",
            "output_hc_up",
        ] {
            assert_eq!(found[format!("{split}.weight").as_str()], "q8_0.split", "{split} {ty}");
        }
        for exact in ["blk.0.hc_attn_inject", "blk.0.hc_ffn_inject", "output_hc_fn"] {
            assert_eq!(found[format!("{exact}.weight").as_str()], inject, "{exact}");
        }
        let merged = &c.manifest().source_tensors[1];
        assert_eq!((merged.ty, merged.exact), (ty, ty == GgmlType::Q8_0));
        assert_eq!(merged.max_error.is_some_and(|e| e > 0.0 && e < 0.01), ty != GgmlType::Q8_0);
        // Both planes of a split start aligned.
        let down =
            c.manifest().tensors.iter().find(|t| t.name == "blk.0.hc_attn_down.weight").expect("stored");
        let planes = c.layouts()[down.layout as usize].planes(32, 128).expect("it tiles");
        assert!(planes.iter().all(|p| (down.offset + p.offset) % 256 == 0));
        succeed(&["export", &room.text("m.gantry"), "-o", &room.text("back.gguf"), "--force"]);
        let diff = gantry(&["diff", &room.text("m.gantry"), &room.text("back.gguf")]);
        let text = String::from_utf8(diff.stdout).expect("UTF-8");
        assert!(text.contains("8 tensors the same") && text.contains(" 0 differ"), "{text}");
    }
}

#[test]
fn an_importance_matrix_weights_unrotated_e8() {
    let room = Room::new();
    write(&room.path("m.gguf"), keys, &tensors(GgmlType::BF16), 16);
    let list = [
        tensor("blk.0.ffn_up_exps.weight.in_sum2", &[256, 3], GgmlType::F32),
        tensor("blk.0.ffn_up_exps.weight.counts", &[1, 3], GgmlType::F32),
    ];
    let imatrix = |w: &mut GgufWriter| {
        w.set("general.type", Value::Str(b"imatrix"));
    };
    write_with(&room.path("i.gguf"), imatrix, &list, |t, i| match t.dims[0] {
        1 => 2.0,
        _ => 1.0 + (i % 7) as f32 * 30.0,
    });
    let i = room.text("i.gguf");
    let (input, with) = (room.text("m.gguf"), room.text("with.gantry"));
    let e8 = ["--allow-incomplete", "--force", "--set", "ffn_up_exps=e8", "--set", "ffn_gate_exps=e8"];
    let base = ["convert", &input, "-o", &with, "--imatrix", &i];
    succeed(&[&base[..], &e8].concat());
    let plain = room.convert("plain.gantry", &e8[2..]);
    let c = Container::open(Path::new(&with)).expect("sound");
    assert!(c.manifest().options["imatrix"].len() == 64 && !plain.manifest().options.contains_key("imatrix"));
    succeed(&["verify", &with, "--against", &input, "--imatrix", &i]);
    refuse(&["verify", &with, "--against", &input], 2, &["--imatrix"]);
    // Only the tensor that it knows differs.
    let text = String::from_utf8(gantry(&["diff", &with, &room.text("plain.gantry")]).stdout).expect("UTF-8");
    assert!(text.contains("ffn_up_exps") && !text.contains("ffn_gate_exps"), "{text}");
    // With a rotation it has no meaning, and does not show.
    let rotated = [&base[..], &["--allow-incomplete", "--force", "--set", "ffn_up_exps=e8:rotated"]].concat();
    succeed(&rotated);
    let c = Container::open(Path::new(&with)).expect("sound");
    assert!(!c.manifest().options.contains_key("imatrix"));
}

#[test]
fn parts_of_several_types_in_one_matrix_keep_their_values() {
    // q, k and v are one matrix, of which each part goes back to its own type.
    let room = Room::new();
    let mut list = llama_tensors(2, 0, GgmlType::Q8_0);
    list.iter_mut().filter(|t| t.name.ends_with(b"attn_q.weight")).for_each(|t| t.ty = GgmlType::Q4_0);
    list.iter_mut().filter(|t| t.name.ends_with(b"ffn_up.weight")).for_each(|t| t.ty = GgmlType::IQ4_NL);
    write(&room.path("m.gguf"), |w| llama_keys(w, 2, 0), &list, 17);
    let c = room.convert("m.gantry", &["--recipe", "lossless"]);
    assert_eq!(c.manifest().tensors.iter().filter(|t| t.parts.len() > 1).count(), 4);
    succeed(&["export", &room.text("m.gantry"), "-o", &room.text("back.gguf")]);
    let (want, found) = (fs::read(room.path("m.gguf")), fs::read(room.path("back.gguf")));
    assert!(want.expect("written") == found.expect("written"));
}

#[test]
fn an_order_that_was_asked_for_by_name_stays_on_every_target() {
    let room = Room::new();
    write(&room.path("m.gguf"), keys, &tensors(GgmlType::BF16), 18);
    let own = room.text("own.toml");
    let rule =
        "[[rule]]\nrole = 'attn_output'\nlayout = 'i8.frag.slot8:channel'\n[[rule]]\nlayout = 'i8.block32'\n";
    fs::write(&own, rule).expect("written");
    let options = ["--recipe", &own, "--set", "attn_q=i8.nmajor:block32", "--set", "output=i8.channel"];
    room.convert("a.gantry", &options);
    room.convert("want.gantry", &[&options[..], &["--target", "cuda:sm_90"]].concat());
    let (a, b) = (room.text("a.gantry"), room.text("b.gantry"));
    succeed(&["replan", &a, "--target", "cuda:sm_90", "-o", &b]);
    assert!(fs::read(&b).expect("written") == fs::read(room.path("want.gantry")).expect("written"));
    let c = Container::open(Path::new(&b)).expect("sound");
    // The very order of one target is still an order asked for by name.
    let options = ["--recipe", "q8", "--no-fuse", "--set", "attn_?=i8.frag.vnni16:block32"];
    for (from, to, more) in [("cpu", "hip:gfx942", &options[..]), ("hip:gfx928", "cpu", &options[3..])] {
        room.convert("a.gantry", &[more, &["--target", from]].concat());
        room.convert("want.gantry", &[more, &["--target", to]].concat());
        succeed(&["replan", &a, "--target", to, "-o", &b, "--force"]);
        assert!(fs::read(&b).expect("written") == fs::read(room.path("want.gantry")).expect("written"));
    }
    let found = layouts(&c);
    assert_eq!(found["blk.0.attn_q.weight"], "i8.nmajor:block32");
    assert_eq!(found["blk.0.attn_output.weight"], "i8.frag.slot8:channel");
    assert_eq!(found["output.weight"], "i8.frag.nv_a64:channel");
}

#[test]
fn e8_of_small_weights_exports_what_it_computes_with() {
    // Half of a small scale is no fp16, so that not every block has an IQ3_XXS form.
    let room = Room::new();
    let list = [tensor("blk.0.ffn_up.weight", &[512, 24], GgmlType::F32)];
    write_with(&room.path("m.gguf"), keys, &list, |_, i| ((i * 37 % 101) as f32 - 50.0) * 1e-4);
    for set in ["ffn_up=e8", "ffn_up=e8.block98:rotated"] {
        room.convert("m.gantry", &["--set", set]);
        succeed(&["export", &room.text("m.gantry"), "-o", &room.text("back.gguf"), "--force"]);
        let diff = gantry(&["diff", &room.text("m.gantry"), &room.text("back.gguf")]);
        let text = String::from_utf8(diff.stdout).expect("UTF-8");
        assert!(text.contains("1 tensor the same"), "{text}");
    }
}

#[test]
fn an_importance_matrix_that_does_not_fit_is_told_and_not_recorded() {
    let room = Room::new();
    let list = [tensor("blk.0.attn_v_b.weight", &[256, 600, 9], GgmlType::BF16)];
    write(&room.path("m.gguf"), keys, &list, 19);
    let imatrix = |dims: [u64; 2]| {
        let list = [
            tensor("blk.0.attn_v_b.weight.in_sum2", &dims, GgmlType::F32),
            tensor("blk.0.attn_v_b.weight.counts", &[1, dims[1]], GgmlType::F32),
        ];
        let kind = |w: &mut GgufWriter| {
            w.set("general.type", Value::Str(b"imatrix"));
        };
        write_with(&room.path("i.gguf"), kind, &list, |_, i| 1.0 + (i % 5) as f32);
        room.text("i.gguf")
    };
    let (input, output) = (room.text("m.gguf"), room.text("m.gantry"));
    let convert = |i: &str| {
        let base =
            ["convert", &input, "-o", &output, "--allow-incomplete", "--force", "--set", "attn_v_b=e8"];
        let text = succeed(&[&base[..], &["--imatrix", i]].concat());
        (text, Container::open(Path::new(&output)).expect("sound"))
    };
    // One stack stored as one matrix: sums of each slice have no place in it, nor have those of another width.
    for dims in [[256, 9], [128, 1]] {
        let (text, c) = convert(&imatrix(dims));
        assert!(text.contains("it fits none of the 1 E8 tensors"), "{text}");
        assert!(!c.manifest().options.contains_key("imatrix"));
        succeed(&["verify", &output, "--against", &input]);
    }
    let i = imatrix([256, 1]);
    let (text, c) = convert(&i);
    assert!(text.contains("weights 1 of 1") && c.manifest().options.contains_key("imatrix"), "{text}");
    succeed(&["verify", &output, "--against", &input, "--imatrix", &i]);
    let base = ["plan", &input, "--allow-incomplete", "--recipe", "compact", "--imatrix", &i];
    assert!(succeed(&base).contains("--imatrix has no effect"));
}
