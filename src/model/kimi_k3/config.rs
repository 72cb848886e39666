//! config.json of Kimi K3 -> the numbers that the equations take.

use serde_json::{Value, json};

use crate::model::fields::Fields;
use crate::model::nn::Situ;

/// Every field that changes what is computed.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub hidden: usize,
    pub layers: usize,
    pub vocab: usize,
    pub eps: f32,
    pub kda: Kda,
    pub mla: Mla,
    pub moe: Moe,
    /// Layers before this one have a dense block.
    pub dense_layers: usize,
    pub dense_inner: usize,
    /// Every so many layers the running sum is stored and starts again.
    pub residual_block: usize,
    pub situ: Situ,
    /// Zero-based, ascending.
    pub mla_layers: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Kda {
    pub heads: usize,
    pub width: usize,
    pub taps: usize,
    pub gate_lower_bound: f32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Mla {
    pub heads: usize,
    pub query_rank: usize,
    pub latent: usize,
    pub key: usize,
    pub shared_key: usize,
    pub value: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Moe {
    pub experts: usize,
    pub chosen: usize,
    pub shared_inner: usize,
    pub latent: usize,
    pub inner: usize,
    pub scaling: f32,
    pub renormalize: bool,
    pub latent_norm: bool,
}

/// Most routed experts of all layers together, 25 times those of the largest known model: their places would take 200 MB, and a
/// config is believed before a single tensor has been seen.
const BLOCKS_MAX: usize = 1 << 21;
/// Most routed experts of a layer: who chose whom is noted in 16 bits, of which one value says nobody.
const EXPERTS_MAX: usize = u16::MAX as usize;

impl Config {
    /// Reads the released nesting; the error lists every fault.
    pub fn read(config: &Value) -> Result<Config, Vec<String>> {
        let mut text = Fields::of(config, "text_config", "text_config");
        let layers = text.count("num_hidden_layers");
        let nested = config.get("text_config").unwrap_or(&Value::Null);
        let mut linear = Fields::of(nested, "linear_attn_config", "text_config.linear_attn_config");
        let mut mla_layers = linear.layers("full_attn_layers", layers);
        mla_layers.sort_unstable();
        let mut all = [mla_layers.clone(), linear.layers("kda_layers", layers)].concat();
        all.sort_unstable();
        linear.require(all.iter().copied().eq(0..layers), || {
            format!("`full_attn_layers` and `kda_layers` must name each layer from 1 to {layers} once")
        });
        let kda = Kda {
            heads: linear.count("num_heads"),
            width: linear.count("head_dim"),
            taps: linear.count_from("short_conv_kernel_size", 2),
            gate_lower_bound: linear.number("gate_lower_bound"),
        };
        let moe = read_moe(&mut text);
        text.require(layers.saturating_mul(moe.experts) <= BLOCKS_MAX, || {
            format!("{layers} layers of {} experts are more than the {BLOCKS_MAX} blocks that an index may hold", moe.experts)
        });
        text.require(moe.experts <= EXPERTS_MAX, || format!("`num_experts` is {}; at most {EXPERTS_MAX} are computed", moe.experts));
        let mla = read_mla(&mut text);
        only_supported(&mut text, mla.heads);
        let read = Config {
            hidden: text.count("hidden_size"),
            layers,
            vocab: text.count("vocab_size"),
            eps: text.positive("rms_norm_eps"),
            kda,
            mla,
            moe,
            dense_layers: text.count_from("first_k_dense_replace", 0),
            dense_inner: text.count("intermediate_size"),
            residual_block: text.count("attn_res_block_size"),
            situ: Situ { beta: text.positive("activation_situ_beta"), linear_beta: text.positive("activation_situ_linear_beta") },
            mla_layers,
        };
        let faults = [text.finish(), linear.finish(), read_packing(nested)].concat();
        if faults.is_empty() { Ok(read) } else { Err(faults) }
    }

    /// Whether `layer` (zero-based) attends by MLA; all others by KDA.
    pub fn is_mla(&self, layer: usize) -> bool {
        self.mla_layers.binary_search(&layer).is_ok()
    }

    /// Stored sums once `layer` (zero-based) has begun, its own push included.
    pub fn stored_sums(&self, layer: usize) -> usize {
        layer / self.residual_block + 1
    }

    /// Sums that a row carries at most: the stored ones and the running one.
    pub fn sums(&self) -> usize {
        self.stored_sums(self.layers - 1) + 1
    }
}

fn read_mla(text: &mut Fields<'_>) -> Mla {
    Mla {
        heads: text.count("num_attention_heads"),
        query_rank: text.count("q_lora_rank"),
        latent: text.count("kv_lora_rank"),
        key: text.count("qk_nope_head_dim"),
        shared_key: text.count("qk_rope_head_dim"),
        value: text.count("v_head_dim"),
    }
}

fn read_moe(text: &mut Fields<'_>) -> Moe {
    let moe = Moe {
        experts: text.count("num_experts"),
        chosen: text.count("num_experts_per_token"),
        shared_inner: text.count("num_shared_experts"),
        latent: text.count("routed_expert_hidden_size"),
        inner: text.count("moe_intermediate_size"),
        scaling: text.number("routed_scaling_factor"),
        renormalize: text.switch("moe_renormalize"),
        latent_norm: text.switch("latent_moe_use_norm"),
    };
    text.require(moe.chosen <= moe.experts, || format!("`num_experts_per_token` is {}, but there are {} experts", moe.chosen, moe.experts));
    for (name, width) in [("routed_expert_hidden_size", moe.latent), ("moe_intermediate_size", moe.inner)] {
        text.require(width.is_multiple_of(32), || format!("`{name}` is {width}, must be a multiple of 32 (MXFP4 groups)"));
    }
    Moe { shared_inner: moe.shared_inner * moe.inner, ..moe }
}

/// Switches with one supported value.
fn only_supported(text: &mut Fields<'_>, heads: usize) {
    for (name, value) in [
        ("model_type", json!("kimi_linear")),
        ("tie_word_embeddings", json!(false)),
        ("hidden_act", json!("situ")),
        ("num_key_value_heads", json!(heads)),
        ("mla_use_nope", json!(true)),
        ("mla_use_output_gate", json!(true)),
        ("moe_router_activation_func", json!("sigmoid")),
        ("num_expert_group", json!(1)),
        ("topk_group", json!(1)),
        ("moe_layer_freq", json!(1)),
        ("num_nextn_predict_layers", json!(0)),
    ] {
        text.only(name, &value);
    }
}

/// The experts' packing; its values are the format's definition.
fn read_packing(text: &Value) -> Vec<String> {
    let mut packing = Fields::of(text, "quantization_config", "text_config.quantization_config");
    packing.only("quant_method", &json!("compressed-tensors"));
    packing.only("format", &json!("mxfp4-pack-quantized"));
    let group = text.pointer("/quantization_config/config_groups/group_0").unwrap_or(&Value::Null);
    let mut weights = Fields::of(group, "weights", "text_config.quantization_config.config_groups.group_0.weights");
    weights.only("num_bits", &json!(4));
    weights.only("type", &json!("float"));
    weights.only("group_size", &json!(32));
    [packing.finish(), weights.finish()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> Value {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/goldens/tiny/checkpoint/config.json");
        serde_json::from_str(&std::fs::read_to_string(path).expect("the fixture")).expect("JSON")
    }

    fn faults(config: &Value) -> Vec<String> {
        Config::read(config).err().unwrap_or_default()
    }

    /// Every field of these objects, by JSON pointer.
    fn fields(config: &Value) -> Vec<String> {
        let weights = "/text_config/quantization_config/config_groups/group_0/weights";
        let objects = ["/text_config", "/text_config/linear_attn_config", "/text_config/quantization_config", weights];
        let names = |object: &&str| {
            let found = config.pointer(object).and_then(Value::as_object).expect("an object").keys();
            found.map(|name| format!("{object}/{name}")).collect::<Vec<_>>()
        };
        objects.iter().flat_map(names).collect()
    }

    #[test]
    fn a_missing_field_is_refused_by_name_and_all_are_told_at_once() {
        assert_eq!(faults(&tiny()), Vec::<String>::new());
        let mut named = 0;
        for pointer in fields(&tiny()) {
            let (object, name) = pointer.rsplit_once('/').expect("a pointer");
            let mut config = tiny();
            config.pointer_mut(object).and_then(Value::as_object_mut).expect("an object").remove(name);
            let said = faults(&config).join("\n");
            assert!(said.contains(name) || name == "strategy", "{pointer}: {said}");
            named += usize::from(said.contains(&format!("{name}` is missing")));
        }
        assert!(named >= 40, "{named} fields are required");
        assert!(faults(&json!({"text_config": {}})).len() >= 30);
    }

    #[test]
    fn a_value_that_is_not_computed_is_refused_by_name() {
        let text = "/text_config";
        let linear = "/text_config/linear_attn_config";
        let cases = [
            (text, "hidden_act", json!("silu")),
            (text, "mla_use_nope", json!(false)),
            (text, "mla_use_output_gate", json!(false)),
            (text, "tie_word_embeddings", json!(true)),
            (text, "num_key_value_heads", json!(1)),
            (text, "moe_router_activation_func", json!("softmax")),
            (text, "num_nextn_predict_layers", json!(1)),
            (text, "hidden_size", json!(0)),
            (text, "hidden_size", json!(-5)),
            (text, "hidden_size", json!(96.5)),
            (text, "hidden_size", json!("96")),
            (text, "hidden_size", json!(1u64 << 40)),
            (text, "num_experts_per_token", json!(25)),
            (text, "num_experts", json!(65_536)),
            (text, "routed_expert_hidden_size", json!(48)),
            (text, "moe_renormalize", json!(1)),
            (text, "rms_norm_eps", json!(0)),
            (text, "rms_norm_eps", json!(1e-60)),
            (text, "activation_situ_beta", json!(-4)),
            (text, "routed_scaling_factor", json!(1e300)),
            (linear, "short_conv_kernel_size", json!(1)),
            (linear, "full_attn_layers", json!([0, 4])),
            (linear, "full_attn_layers", json!([4, 8, 12, 14])),
            (linear, "full_attn_layers", json!([4, 8, 12])),
            (linear, "kda_layers", json!([1, 1, 2, 3, 5, 6, 7, 9, 10, 11])),
        ];
        for (object, name, value) in cases {
            let mut config = tiny();
            config.pointer_mut(object).expect("an object")[name] = value.clone();
            let said = faults(&config).join("\n");
            assert!(said.contains(&format!("{name}`")), "{name} = {value}: {said}");
        }
    }

    #[test]
    fn a_model_of_too_many_experts_is_refused_before_anything_is_allocated() {
        let mut config = tiny();
        let layers = 1u64 << 20;
        config["text_config"]["num_hidden_layers"] = json!(layers);
        config["text_config"]["num_experts"] = json!(layers);
        config["text_config"]["linear_attn_config"]["full_attn_layers"] = json!([]);
        config["text_config"]["linear_attn_config"]["kda_layers"] = json!((1..=layers).collect::<Vec<_>>());
        let said = faults(&config).join("\n");
        assert!(said.contains("1048576 layers of 1048576 experts"), "{said}");
    }
}
