//! Checkpoints as downloads and copies leave them: each fault is refused by name before work, none panics, none changes an answer.

use serde_json::{Value, json};

use crate::house::{Done, House, Row, demo_model, documents, root};
use crate::model::{Model, shard, unshard};

const INDEX: &str = "model.safetensors.index.json";
const FIRST: &str = "model-00001-of-00004.safetensors";
const SECOND: &str = "model-00002-of-00004.safetensors";
const EMBEDDING: &str = "language_model.model.embed_tokens.weight";
const NORM: &str = "language_model.model.norm.weight";

/// A job of one short row.
fn row(house: &House) -> std::path::PathBuf {
    house.lines("row.jsonl", &[json!({ "id": "a", "prompt_token_ids": [5, 6, 7] })])
}

/// Runs one short row on `model`; a refusal leaves no folder.
fn try_model(house: &House, model: &Model) -> Done {
    let out = house.fresh("out");
    let done = house.run(&row(house), &out, &[&model.set(), "sampling.max_tokens=2", "sampling.logprobs=true"]);
    assert!(done.code == Some(0) || !out.exists(), "{done:?}");
    done
}

fn answer(house: &House, model: &Model) -> Row {
    house.rows_of(&row(house), &[&model.set(), "sampling.max_tokens=2", "sampling.logprobs=true"], 0).remove(0)
}

#[track_caller]
fn refused(change: impl FnOnce(&Model), parts: &[&str]) {
    let house = House::new();
    let model = house.model();
    change(&model);
    try_model(&house, &model).says(3, parts);
}

#[test]
fn damaged_shards_are_refused_by_name() {
    refused(|m| m.edit(SECOND, |bytes| bytes.truncate(bytes.len() - 1_000)), &[SECOND, "1000 bytes are missing", "download it again"]);
    refused(|m| m.edit(SECOND, |bytes| bytes.truncate(5_000)), &[SECOND, "cut short"]);
    refused(|m| m.put(SECOND, ""), &[SECOND, "0 bytes"]);
    refused(|m| m.edit(SECOND, |bytes| bytes.extend([0; 4_096])), &[SECOND, "4096 bytes more"]);
    refused(|m| m.edit(SECOND, |bytes| bytes[..60_000].fill(0)), &[SECOND, "header"]);
    refused(|m| m.edit(SECOND, |bytes| bytes[8..].fill(0)), &[SECOND, "header that is not valid"]);
    refused(|m| m.edit(SECOND, |bytes| bytes[8..30].fill(b'x')), &[SECOND, "header that is not valid"]);
    refused(|m| m.edit(SECOND, |bytes| bytes[..8].fill(255)), &[SECOND, "header"]);
    refused(|m| m.put(SECOND, "<html>404 not found</html>"), &[SECOND]);
    refused(|m| m.put(FIRST, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4196424\n"), &[FIRST]);
    refused(|m| m.remove(SECOND), &[SECOND, "not in the folder", INDEX]);
    refused(|m| (m.remove(SECOND), m.remove(INDEX)).1, &["layers.0.", "download the model again"]);
    refused(|m| (1..=4).for_each(|i| m.remove(&format!("model-0000{i}-of-00004.safetensors"))), &["not in the folder"]);
}

#[test]
fn damaged_index_files_are_refused_by_name() {
    let index = |change: fn(&mut Value)| {
        move |m: &Model| {
            let mut index = serde_json::from_slice(&m.read(INDEX)).expect("JSON");
            change(&mut index);
            m.put(INDEX, index.to_string());
        }
    };
    refused(index(|v| v["weight_map"][NORM] = json!("../elsewhere.safetensors")), &[INDEX, "../elsewhere"]);
    refused(index(|v| v["weight_map"][NORM] = json!("gone.safetensors")), &[INDEX, "gone.safetensors"]);
    refused(index(|v| v["weight_map"][NORM] = json!(3)), &[INDEX]);
    refused(index(|v| v["weight_map"] = json!({})), &[INDEX, "names no file"]);
    refused(index(|v| *v = json!([])), &[INDEX]);
    refused(|m| m.put(INDEX, "{\"weight_map\":"), &[INDEX]);
    refused(|m| m.put(INDEX, [0; 64]), &[INDEX]);
}

#[test]
fn stray_files_change_nothing() {
    let house = House::new();
    let model = house.model();
    let clean = answer(&house, &model);
    let magic = [0, 5, 22, 7, 0, 2, 0, 0].repeat(512);
    model.put(&format!("._{FIRST}"), &magic);
    model.put("._config.json", &magic);
    model.put("model-00005-of-00005.safetensors.tmp", "half");
    assert_eq!(answer(&house, &model), Row { ..clean.clone() }, "with an index");
    model.put("notes.safetensors", "not named in the index");
    assert_eq!(answer(&house, &model).tokens, clean.tokens);
    model.remove("notes.safetensors");
    model.remove(INDEX);
    let without = answer(&house, &model);
    assert_eq!((without.tokens, without.logprobs), (clean.tokens, clean.logprobs));
}

#[test]
fn tensors_that_are_not_the_models_are_refused_by_name() {
    refused(|m| m.header(FIRST, |h| h[EMBEDDING]["dtype"] = json!("F16")), &[FIRST, EMBEDDING, "F16", "BF16"]);
    refused(|m| m.header(FIRST, |h| h[EMBEDDING]["shape"] = json!([256, 4096])), &[FIRST, EMBEDDING, "[256, 4096]"]);
    refused(|m| m.header(FIRST, |h| h[EMBEDDING]["shape"] = json!([4096, 255])), &[FIRST, EMBEDDING]);
    refused(|m| m.header(FIRST, |h| h[EMBEDDING]["shape"] = json!([u64::MAX, u64::MAX])), &[FIRST, EMBEDDING]);
    refused(|m| m.header(FIRST, |h| h[NORM]["data_offsets"] = json!([u64::MAX - 4, u64::MAX])), &[FIRST, NORM]);
    refused(|m| m.header(FIRST, |h| h[NORM]["data_offsets"] = json!([9, 4])), &[FIRST, NORM]);
    refused(|m| m.header(FIRST, |h| h[NORM]["data_offsets"] = json!([0, 512])), &[FIRST, "overlap"]);
    refused(
        |m| {
            m.remove(INDEX);
            for shard in 1..=4 {
                m.header(&format!("model-0000{shard}-of-00004.safetensors"), |h| {
                    let old = std::mem::take(h.as_object_mut().expect("a header"));
                    let named = |name: String| name.replace("language_model.model", "model.language_model");
                    h.as_object_mut().expect("a header").extend(old.into_iter().map(|(name, entry)| (named(name), entry)));
                });
            }
        },
        &[FIRST, "`model.language_model.embed_tokens.weight`", "no part of the model"],
    );
    let scale = "language_model.model.layers.1.block_sparse_moe.experts.0.w1.weight_scale";
    refused(|m| m.header(SECOND, |h| h[scale]["dtype"] = json!("I8")), &[SECOND, scale, "U8"]);
    refused(|m| m.header(SECOND, |h| drop(h.as_object_mut().map(|h| h.shift_remove(scale)))), &[SECOND]);
}

#[test]
fn of_a_tensor_that_lies_twice_the_index_says_which_counts() {
    let house = House::new();
    let model = house.model();
    let clean = answer(&house, &model);
    // The same norm in another file, each value a little off.
    let (header, data) = shard(&model.read(FIRST));
    let at = |i: usize| header[NORM]["data_offsets"][i].as_u64().expect("an offset") as usize;
    let nudged: Vec<u8> = data[at(0)..at(1)].chunks(2).flat_map(|bf16| [bf16[0] ^ 0x20, bf16[1]]).collect();
    let extra = unshard(&json!({ NORM: { "dtype": "BF16", "shape": [256], "data_offsets": [0, nudged.len()] } }), &nudged);
    model.put("extra.safetensors", &extra);
    assert_eq!(answer(&house, &model).tokens, clean.tokens, "a file that the index does not name is not read");

    let mut index: Value = serde_json::from_slice(&model.read(INDEX)).expect("JSON");
    index["weight_map"][NORM] = json!("extra.safetensors");
    model.put(INDEX, index.to_string());
    let chosen = answer(&house, &model);
    let changed = house.model();
    changed.tensor(FIRST, NORM, |bytes| bytes.copy_from_slice(&nudged));
    let expected = answer(&house, &changed);
    assert_eq!((&chosen.tokens, &chosen.logprobs), (&expected.tokens, &expected.logprobs));
    assert_ne!(chosen.logprobs, clean.logprobs, "the two copies differ");

    model.remove(INDEX);
    try_model(&house, &model).says(3, &[NORM, "twice", INDEX]);
}

#[test]
fn a_scale_that_is_no_number_is_refused_with_its_tensor() {
    let house = House::new();
    let model = house.model();
    let scale = "language_model.model.layers.1.block_sparse_moe.experts.7.w3.weight_scale";
    model.tensor(SECOND, scale, |bytes| bytes[100] = 255);
    let input = house.lines("documents.jsonl", &documents(24));
    let out = house.path("out");
    house.run(&input, &out, &[&model.set(), "input.template={{ text }}", "sampling.max_tokens=1"]).says(3, &[scale, "255"]);
    assert!(!out.join("data/_SUCCESS").exists() && crate::house::rows(&out).is_empty());
}

#[test]
fn tokenizers_of_others_are_refused_and_none_is_no_text() {
    refused(|m| (m.remove("tiktoken.model"), m.put("tokenizer.json", "{}")).1, &["tokenizer.json", "another family", "tiktoken.model"]);
    refused(|m| m.remove("tokenizer_config.json"), &["tokenizer_config.json"]);
    refused(|m| m.edit("tiktoken.model", |b| b.extend(b"enp6enp6enp6 3840\n")), &["tiktoken.model", "vocabulary"]);
    refused(|m| m.edit("tiktoken.model", |b| b.truncate(b.len() - 3)), &["tiktoken.model"]);
    refused(|m| m.put("tiktoken.model", "not base64\n"), &["tiktoken.model", "line 1"]);
    refused(|m| m.put("tokenizer_config.json", "{\"added_tokens_decoder\":{}}"), &["tokenizer_config.json", "<|open|>"]);

    let house = House::new();
    let model = house.model();
    model.remove("tiktoken.model");
    model.remove("tokenizer_config.json");
    let lines = [
        json!({ "prompt": "x" }),
        json!({ "messages": crate::house::says("x") }),
        json!({ "prompt_token_ids": [5, 6, 7] }),
        json!({ "prompt_token_ids": [5], "params": { "stop": "x" } }),
        json!({ "prompt_token_ids": [4096] }),
    ];
    let rows = house.answers(&lines, &[&model.set(), "sampling.max_tokens=2"], 1);
    let codes: Vec<_> = rows.iter().map(Row::code).collect();
    assert_eq!(codes, ["no_tokenizer", "no_tokenizer", "", "no_tokenizer", "bad_prompt_token_ids"]);
    let with = house.answers(&lines[2..3], &["sampling.max_tokens=2"], 0);
    assert_eq!((&rows[2].text, rows[2].tokens()), (&None, with[0].tokens()));
}

#[track_caller]
fn refused_config(change: impl FnOnce(&mut Value), parts: &[&str]) {
    refused(|m| m.config(change), &[&["config.json"], parts].concat());
}

#[test]
fn config_faults_are_told_all_at_once() {
    let text = |config: &mut Value, name: &str| drop(config["text_config"].as_object_mut().expect("an object").shift_remove(name));
    refused_config(
        |c| {
            text(c, "kv_lora_rank");
            text(c, "rms_norm_eps");
            c["text_config"]["linear_attn_config"].as_object_mut().expect("an object").shift_remove("head_dim");
            c["text_config"]["hidden_act"] = json!("silu");
        },
        &["kv_lora_rank", "rms_norm_eps", "linear_attn_config.head_dim", "hidden_act", "silu"],
    );
    refused_config(|c| text(c, "linear_attn_config"), &["linear_attn_config"]);
    refused_config(|c| c["model_type"] = json!("llama"), &["llama", "kimi_k3"]);
    refused_config(|c| drop(c.as_object_mut().map(|c| c.shift_remove("model_type"))), &["model_type"]);
    refused_config(|c| *c = json!([]), &[]);
    refused(|m| m.put("config.json", "{\"model_type\": \"kimi_k3\","), &["config.json"]);
    refused(|m| m.put("config.json", [0; 100]), &["config.json"]);
    refused(|m| m.remove("config.json"), &["config.json"]);
}

#[test]
fn what_is_not_computed_is_refused_by_field() {
    let switches = [
        ("tie_word_embeddings", json!(true)),
        ("hidden_act", json!("silu")),
        ("num_key_value_heads", json!(4)),
        ("mla_use_nope", json!(false)),
        ("mla_use_output_gate", json!(false)),
        ("moe_router_activation_func", json!("softmax")),
        ("num_expert_group", json!(2)),
        ("moe_layer_freq", json!(2)),
        ("num_nextn_predict_layers", json!(1)),
        ("model_type", json!("deepseek_v3")),
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-256)),
        ("hidden_size", json!(256.5)),
        ("num_hidden_layers", json!(1u64 << 40)),
        ("vocab_size", json!("4096")),
        ("rms_norm_eps", json!(0)),
        ("num_experts_per_token", json!(65)),
        ("routed_expert_hidden_size", json!(100)),
        ("moe_renormalize", json!(1)),
        ("routed_scaling_factor", json!(1e300)),
    ];
    for (name, value) in switches {
        refused_config(|c| c["text_config"][name] = value.clone(), &["text_config", name]);
    }
    let linear = |name: &'static str, value: Value| move |c: &mut Value| c["text_config"]["linear_attn_config"][name] = value;
    refused_config(linear("full_attn_layers", json!([4, 8, 9, 1])), &["full_attn_layers", "kda_layers"]);
    refused_config(linear("full_attn_layers", json!([0, 4, 8])), &["full_attn_layers"]);
    refused_config(linear("kda_layers", json!([1, 2, 3, 5, 6])), &["kda_layers"]);
    refused_config(linear("kda_layers", json!("1")), &["kda_layers"]);
    refused_config(|c| c["text_config"]["quantization_config"]["format"] = json!("nvfp4-pack-quantized"), &["quantization_config.format"]);
    // Fields that agree with themselves and not with the tensors.
    refused(|m| m.config(|c| c["text_config"]["hidden_size"] = json!(512)), &["shape"]);
    refused(|m| m.config(|c| c["text_config"]["num_experts"] = json!(63)), &["shape"]);
    refused(|m| m.config(|c| c["text_config"]["num_experts"] = json!(65)), &["shape"]);
    refused(|m| m.config(|c| c["text_config"]["vocab_size"] = json!(4000)), &["4000"]);
}

#[test]
fn headers_with_any_byte_changed_never_panic() {
    let house = House::new();
    let tiny = root().join("fixtures/goldens/tiny/checkpoint");
    let name = "model-00001-of-00006.safetensors";
    let clean = std::fs::read(tiny.join(name)).expect("a shard");
    let header = 8 + u64::from_le_bytes(*clean.first_chunk::<8>().expect("a length")) as usize;
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..40 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let model = house.model_of(&tiny);
        let at = (random >> 33) as usize % header;
        model.edit(name, |bytes| bytes[at] = (random >> 16) as u8);
        let done = try_model(&house, &model);
        assert!(matches!(done.code, Some(0 | 3)) && !done.err.contains("panicked"), "byte {at}: {done:?}");
        assert!(done.code == Some(0) || done.err.contains(name) || done.err.contains("tensor"), "byte {at}: {done:?}");
    }
}

#[test]
fn a_folder_that_is_no_model_is_refused() {
    let house = House::new();
    for (path, part) in [("nowhere", "nowhere"), ("row.jsonl", "row.jsonl"), (".", "config.json")] {
        let set = format!("model.path={path}");
        house.run(&row(&house), &house.path("out"), &[&set]).says(3, &[part]);
    }
    assert!(demo_model().join("config.json").exists());
}
