//! Writing headers and files, and that nothing is lost on the way.

use crate::bytes;
use gantry_formats::block::GgmlType;
use gantry_formats::gguf::{
    DataWriter, Gguf, GgufWriter, Header, OwnedArray, OwnedValue, Value, ValueType, display_name,
};
use proptest::prelude::*;

fn sample() -> GgufWriter {
    let mut writer = GgufWriter::new(3);
    let values: [(&str, OwnedValue); 16] = [
        ("general.architecture", "llama".into()),
        ("llama.embedding_length", 64u32.into()),
        ("u8", 1u8.into()),
        ("i8", (-1i8).into()),
        ("u16", 2u16.into()),
        ("i16", (-2i16).into()),
        ("i32", (-3i32).into()),
        ("f32", 0.5f32.into()),
        ("bool", true.into()),
        ("bytes", (&b"\xff\0"[..]).into()),
        ("u64", u64::MAX.into()),
        ("i64", i64::MIN.into()),
        ("f64", 0.1f64.into()),
        ("numbers", OwnedArray::new([1u32, 2, 3]).into()),
        ("strings", OwnedArray::new(["a", "", "ü"]).into()),
        ("nothing", OwnedArray::new::<f32>([]).into()),
    ];
    for (key, value) in &values {
        writer.set(key, value.view());
    }
    writer.tensor("a.weight", &[64, 3], GgmlType::Q8_0).expect("fits");
    writer.tensor(b"\xff.weight", &[5], GgmlType::F32).expect("fits");
    writer.tensor("empty", &[0, 7], GgmlType::F16).expect("fits");
    writer.tensor("one", &[], GgmlType::I8).expect("fits");
    writer
}

fn file(header: &Header) -> Vec<u8> {
    let mut out = DataWriter::new(Vec::new(), header).expect("written");
    for (i, t) in header.tensors().iter().enumerate().filter(|(_, t)| t.bytes > 0) {
        assert_eq!(out.current(), i);
        let bytes = vec![i as u8 + 1; t.bytes as usize];
        let (head, tail) = bytes.split_at(bytes.len() / 3);
        out.write(head).expect("written");
        out.write(tail).expect("written");
    }
    out.finish().expect("complete")
}

#[test]
fn reads_back_what_it_wrote() {
    let header = sample().finish().expect("a header");
    let bytes = file(&header);
    assert_eq!(bytes.len() as u64, header.file_len());
    let model = Gguf::from_sources(vec![("x.gguf".into(), bytes)]).expect("opens");
    assert_eq!(model.header().raw(), header.raw());
    assert_eq!(model.header().arch_key("embedding_length"), Some(Value::U32(64)));
    let get = |key: &str| model.get(key).expect("there");
    assert_eq!(get("u64").as_u64(), Some(u64::MAX));
    assert_eq!((get("i64").as_i64(), get("i64").as_u64()), (Some(i64::MIN), None));
    assert_eq!(
        (get("i8").as_f64(), get("f64").as_f64(), get("bool").as_f64()),
        (Some(-1.0), Some(0.1), None)
    );
    assert_eq!((get("bool").as_bool(), get("bytes").as_str()), (Some(true), None));
    assert_eq!(
        (get("bytes").to_string(), get("strings").to_string()),
        ("\\xff\\x00".into(), "[str; 3]".into())
    );
    let numbers = get("numbers").as_array().expect("an array");
    assert_eq!(numbers.iter().filter_map(|v| v.as_u64()).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((numbers.elem(), numbers.len(), numbers.iter().len()), (ValueType::U32, 3, 3));
    assert_eq!((numbers.get(1), numbers.get(3), numbers.get(usize::MAX)), (Some(Value::U32(2)), None, None));
    let strings = get("strings").as_array().expect("an array");
    assert_eq!(strings.strings().expect("strings").collect::<Vec<_>>(), [&b"a"[..], b"", "ü".as_bytes()]);
    assert!(numbers.strings().is_none());
    for entry in model.header().entries() {
        let value = entry.value().expect("decodes");
        let mut again = Vec::new();
        OwnedValue::from(value).view().encode(&mut again);
        assert_eq!(again, entry.raw, "{}", display_name(entry.key));
    }
    for t in model.tensors() {
        let mut bytes = vec![0; t.bytes as usize];
        model.read_tensor(&t, 0, &mut bytes).expect("readable");
        assert!(bytes.iter().all(|b| usize::from(*b) == t.index + 1), "{}", t.display_name());
    }
}

#[test]
fn changes_keys_and_types_in_place() {
    let old = sample().finish().expect("a header");
    let mut writer = GgufWriter::from_header(&old);
    writer.set("u8", Value::U8(9)).set("general.file_type", Value::U32(7));
    assert!(writer.remove("i8") && !writer.remove("i8"));
    writer.set("i64", Value::I64(1));
    writer.set_type(0, GgmlType::F32).expect("fits");
    assert!(writer.set_type(1, GgmlType::Q8_0).is_err(), "rows of 5");
    assert!(writer.set_type(9, GgmlType::F32).is_err(), "no such tensor");
    let new = writer.finish().expect("a header");
    let keys: Vec<_> = new.keys().map(display_name).collect();
    assert_eq!(&keys[..4], ["general.architecture", "llama.embedding_length", "u8", "u16"]);
    assert_eq!(keys.last().map(String::as_str), Some("general.file_type"));
    assert_eq!(
        (new.get("u8"), new.get("i64"), new.get("i8")),
        (Some(Value::U8(9)), Some(Value::I64(1)), None)
    );
    assert_eq!(new.tensors()[0].bytes, 64 * 3 * 4);
    assert_eq!(new.tensors()[1].offset, 64 * 3 * 4);
    Gguf::from_sources(vec![("x".into(), file(&new))]).expect("opens");
}

#[test]
fn refuses_to_write_what_it_would_not_read() {
    let refuse = |change: &dyn Fn(&mut GgufWriter), word: &str| {
        let mut writer = sample();
        change(&mut writer);
        let said = writer.finish().expect_err(word).to_string();
        assert!(said.contains(word), "{said}");
    };
    refuse(&|w| _ = w.tensor("one", &[1], GgmlType::F32), "duplicate tensor `one`");
    refuse(&|w| _ = w.set("", Value::U8(0)), "empty key");
    refuse(&|w| _ = w.set("general.alignment", Value::U32(3)), "general.alignment is 3");
    refuse(&|w| _ = w.set("general.alignment", Value::U32(0)), "general.alignment is 0");
    refuse(&|w| _ = w.set("k".repeat(70_000), Value::U8(0)), "key length");
    assert!(GgufWriter::new(4).finish().is_err());
    assert!(GgufWriter::new(2).finish().is_ok());
    assert!(sample().tensor("n".repeat(64), &[1], GgmlType::F32).is_err());
    assert!(sample().tensor("five", &[1; 5], GgmlType::F32).is_err());
    assert!(sample().tensor("many", &[1 << 40, 1 << 40], GgmlType::F32).is_err());
}

#[test]
fn data_must_be_complete_and_no_more() {
    let header = sample().finish().expect("a header");
    let out = DataWriter::new(Vec::new(), &header).expect("written");
    assert!(out.finish().is_err());
    let mut out = DataWriter::new(Vec::new(), &header).expect("written");
    assert!(out.write(&[0; 1000]).is_err(), "beyond the first tensor");
    for t in header.tensors() {
        out.write(&vec![0; t.bytes as usize]).expect("written");
    }
    assert!(out.write(&[0]).is_err(), "beyond the last tensor");
    assert_eq!(out.finish().expect("complete").len() as u64, header.file_len());
}

#[test]
fn alignment_moves_everything() {
    let mut writer = sample();
    writer.set("general.alignment", Value::U32(8192));
    let header = writer.finish().expect("a header");
    assert_eq!((header.alignment(), header.data_offset()), (8192, 8192));
    assert!(header.tensors().iter().all(|t| t.offset % 8192 == 0));
    Gguf::from_sources(vec![("x".into(), file(&header))]).expect("opens");
}

#[test]
fn parses_its_own_raw_bytes() {
    let header = sample().finish().expect("a header");
    let again = Header::parse(header.raw().to_vec(), header.file_len(), "x").expect("parses");
    assert_eq!((again.raw(), again.tensors(), again.gaps()), (header.raw(), header.tensors(), header.gaps()));
    let longer = [header.raw(), &[0]].concat();
    let said = Header::parse(longer, header.file_len(), "x").expect_err("a byte too many").to_string();
    assert!(said.contains("1 bytes after the tensor table"), "{said}");
    for len in 0..header.raw().len() {
        assert!(Header::parse(header.raw()[..len].to_vec(), header.file_len(), "x").is_err());
    }
    assert!(Header::parse(header.raw().to_vec(), header.raw().len() as u64, "x").is_err(), "no data");
}

/// A float whose bits a careless copy would change: a signalling NaN.
#[test]
fn keeps_signalling_nans() {
    let bits = 0x7fa0_0001u32.to_le_bytes();
    let file = bytes::good().key(bytes::kv("x", 6, &bits));
    let model = Gguf::from_sources(vec![("x".into(), file.build())]).expect("opens");
    let again = GgufWriter::from_header(model.header()).finish().expect("a header");
    assert_eq!(again.raw(), file.header());
}

fn any_value() -> impl Strategy<Value = OwnedValue> {
    let text = proptest::collection::vec(any::<u8>(), 0..20);
    prop_oneof![
        any::<u8>().prop_map(OwnedValue::from),
        any::<i16>().prop_map(OwnedValue::from),
        any::<u32>().prop_map(OwnedValue::from),
        any::<f32>().prop_map(OwnedValue::from),
        any::<bool>().prop_map(OwnedValue::from),
        any::<i64>().prop_map(OwnedValue::from),
        any::<f64>().prop_map(OwnedValue::from),
        text.clone().prop_map(OwnedValue::Str),
        proptest::collection::vec(any::<u64>(), 0..9).prop_map(|v| OwnedArray::new(v).into()),
        proptest::collection::vec(any::<bool>(), 0..9).prop_map(|v| OwnedArray::new(v).into()),
        proptest::collection::vec(text, 0..9)
            .prop_map(|v| OwnedArray::new(v.iter().map(Vec::as_slice)).into()),
    ]
}

proptest! {
    #[test]
    fn any_header_is_rewritten_the_same(
        keys in proptest::collection::btree_map(proptest::collection::vec(any::<u8>(), 1..12), any_value(), 0..12),
        names in proptest::collection::btree_set(proptest::collection::vec(any::<u8>(), 0..63), 0..12),
        dims in proptest::collection::vec(0u64..6, 0..5),
        version in 2u32..4,
    ) {
        let mut writer = GgufWriter::new(version);
        for (key, value) in &keys {
            writer.set(key, value.view());
        }
        writer.set("general.architecture", Value::Str(b"x"));
        for name in &names {
            writer.tensor(name, &dims, GgmlType::F16)?;
        }
        let header = writer.finish()?;
        let bytes = file_of_zeros(&header);
        let model = Gguf::from_sources(vec![("x".into(), bytes)])?;
        prop_assert_eq!(model.header().raw(), header.raw());
        let again = GgufWriter::from_header(model.header()).finish()?;
        prop_assert_eq!(again.raw(), header.raw());
        for (key, value) in &keys {
            let mut bytes = (Vec::new(), Vec::new());
            model.get(key).expect("there").encode(&mut bytes.0);
            value.view().encode(&mut bytes.1);
            prop_assert_eq!(bytes.0, bytes.1);
        }
    }
}

fn file_of_zeros(header: &Header) -> Vec<u8> {
    let mut out = header.raw().to_vec();
    out.resize(header.file_len() as usize, 0);
    out
}
