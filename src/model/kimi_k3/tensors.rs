//! Kimi K3's tensors and states, in order of use, by the released checkpoint's names.

use crate::model::kimi_k3::config::Config;
use crate::model::manifest::{Blocks, Layer, Manifest, Part, PartFormat, StateId, StateSpec, Weight, WeightId, panel_rows};
use crate::model::nn::{Glu, KDA_RECORD, Kda, Mla, Moe, Sums, VOCABULARY_GRID};

/// Where the weights of one layer stand in the manifest.
pub struct LayerWeights {
    pub attention_sums: Sums,
    pub input_norm: WeightId,
    pub attention: Attention,
    pub mlp_sums: Sums,
    pub post_norm: WeightId,
    pub mlp: Mlp,
}

pub enum Attention {
    Kda(Kda),
    Mla(Mla),
}

pub enum Mlp {
    Dense(Glu),
    Moe(Moe),
}

/// What follows the last layer.
pub struct Tail {
    pub sums: Sums,
    pub norm: WeightId,
    pub head: WeightId,
}

const PREFIX: &str = "language_model.";

/// Builds the manifest and, beside it, the places of every weight.
pub fn list(c: &Config, panel_bytes: usize) -> (Manifest, Vec<LayerWeights>, Tail) {
    let mut b = Builder { c, panel_bytes, weights: Vec::new(), states: Vec::new() };
    let mut layers = Vec::new();
    let mut places = Vec::new();
    for layer in 0..c.layers {
        let (first_weight, first_state) = (b.weights.len() as u32, b.states.len() as u32);
        places.push(b.layer(layer));
        layers.push(Layer {
            weights: first_weight..b.weights.len() as u32,
            states: first_state..b.states.len() as u32,
            blocks: (layer >= c.dense_layers).then(|| blocks(c, layer)),
        });
    }
    let tail = Tail {
        sums: b.sums("model.output_attn_res"),
        norm: b.vector("model.norm.weight", c.hidden),
        head: b.matrix("lm_head.weight", c.vocab, c.hidden, VOCABULARY_GRID),
    };
    let embedding = b.matrix("model.embed_tokens.weight", c.vocab, c.hidden, 1);
    let manifest = Manifest {
        hidden: c.hidden,
        vocab: c.vocab,
        stream_width: c.sums() * c.hidden,
        row_scratch: row_scratch(c, panel_bytes),
        weights: b.weights,
        embedding,
        head: tail.head,
        ignored: vec!["vision_tower.", "mm_projector."],
        states: b.states,
        layers,
    };
    (manifest, places, tail)
}

/// Attention heads that are worked on together: one panel of the widest projection by heads.
fn head_group(panel_bytes: usize, heads: usize, rows_a_head: usize, cols: usize) -> usize {
    (panel_rows(panel_bytes, cols, rows_a_head) / rows_a_head).min(heads)
}

/// Heads of an MLA layer that are worked on together.
fn mla_group(c: &Config, panel_bytes: usize) -> usize {
    let m = &c.mla;
    [(m.key + m.shared_key, m.query_rank), (m.key + m.value, m.latent), (m.value, c.hidden)]
        .map(|(rows, cols)| head_group(panel_bytes, m.heads, rows, cols))
        .into_iter()
        .min()
        .expect("three projections")
}

/// Most scratch floats a row, by the parts of a layer that are alive together.
fn row_scratch(c: &Config, panel_bytes: usize) -> usize {
    let group = head_group(panel_bytes, c.kda.heads, c.kda.width, c.hidden) * c.kda.width;
    let kda = c.hidden + c.kda.width + c.kda.heads + 8 * group + c.kda.heads * c.kda.width;
    let m = &c.mla;
    let a_head = 2 * m.key + m.shared_key + (m.latent + m.shared_key) + m.latent + 2 * m.value;
    let mla = c.hidden + 2 * m.query_rank + 2 * m.latent + m.shared_key + mla_group(c, panel_bytes) * a_head + m.heads * m.value;
    let glu = |inner: usize| inner + 2 * panel_rows(panel_bytes, c.hidden, 1).min(inner);
    let dense = if c.dense_layers > 0 { glu(c.dense_inner) } else { 0 };
    // What the shared experts made waits while the routed ones and their sum are computed.
    let moe = 2 * c.moe.experts + c.hidden + (3 * c.moe.latent + c.hidden).max(glu(c.moe.shared_inner));
    2 * c.hidden + [kda, mla, dense, moe].into_iter().max().expect("four kinds")
}

fn blocks(c: &Config, layer: usize) -> Blocks {
    let (inner, latent) = (c.moe.inner, c.moe.latent);
    let part = |name, rows, cols| Part { name, rows, cols, format: PartFormat::Mxfp4 };
    Blocks {
        prefix: format!("{PREFIX}model.layers.{layer}.block_sparse_moe.experts."),
        count: c.moe.experts,
        chosen: c.moe.chosen,
        width: latent,
        inner: 2 * inner,
        parts: vec![part("w1", inner, latent), part("w3", inner, latent), part("w2", latent, inner)],
    }
}

struct Builder<'a> {
    c: &'a Config,
    panel_bytes: usize,
    weights: Vec<Weight>,
    states: Vec<StateSpec>,
}

impl Builder<'_> {
    fn push(&mut self, name: &str, shape: Vec<usize>, panel_rows: usize) -> WeightId {
        self.weights.push(Weight { name: format!("{PREFIX}{name}"), shape, panel_rows, whole: false });
        WeightId(self.weights.len() as u32 - 1)
    }

    fn state(&mut self, spec: StateSpec) -> StateId {
        self.states.push(spec);
        StateId(self.states.len() as u32 - 1)
    }

    /// A matrix whose panels hold whole multiples of `granule` output rows.
    fn matrix(&mut self, name: &str, rows: usize, cols: usize, granule: usize) -> WeightId {
        self.push(name, vec![rows, cols], panel_rows(self.panel_bytes, cols, granule))
    }

    /// A weight that is asked for whole.
    fn whole(&mut self, name: &str, shape: Vec<usize>) -> WeightId {
        let rows = shape[0];
        let id = self.push(name, shape, rows);
        self.weights[id.0 as usize].whole = true;
        id
    }

    fn vector(&mut self, name: &str, len: usize) -> WeightId {
        self.whole(name, vec![len])
    }

    fn sums(&mut self, name: &str) -> Sums {
        Sums {
            norm: self.vector(&format!("{name}_norm.weight"), self.c.hidden),
            proj: self.whole(&format!("{name}_proj.weight"), vec![1, self.c.hidden]),
        }
    }

    fn glu(&mut self, name: &str, inner: usize) -> Glu {
        let (hidden, c) = (self.c.hidden, self.c.situ);
        Glu {
            gate: self.matrix(&format!("{name}.gate_proj.weight"), inner, hidden, 1),
            up: self.matrix(&format!("{name}.up_proj.weight"), inner, hidden, 1),
            down: self.matrix(&format!("{name}.down_proj.weight"), hidden, inner, 1),
            inner,
            step: panel_rows(self.panel_bytes, hidden, 1),
            situ: c,
        }
    }

    fn layer(&mut self, layer: usize) -> LayerWeights {
        let at = format!("model.layers.{layer}");
        LayerWeights {
            attention_sums: self.sums(&format!("{at}.self_attention_res")),
            input_norm: self.vector(&format!("{at}.input_layernorm.weight"), self.c.hidden),
            attention: if self.c.is_mla(layer) { self.mla(&format!("{at}.self_attn")) } else { self.kda(&format!("{at}.self_attn")) },
            mlp_sums: self.sums(&format!("{at}.mlp_res")),
            post_norm: self.vector(&format!("{at}.post_attention_layernorm.weight"), self.c.hidden),
            mlp: if layer < self.c.dense_layers {
                Mlp::Dense(self.glu(&format!("{at}.mlp"), self.c.dense_inner))
            } else {
                Mlp::Moe(self.moe(&format!("{at}.block_sparse_moe")))
            },
        }
    }

    fn kda(&mut self, at: &str) -> Attention {
        let (hidden, k) = (self.c.hidden, self.c.kda.clone());
        let wide = k.heads * k.width;
        let group = head_group(self.panel_bytes, k.heads, k.width, hidden) * k.width;
        let by_heads = |b: &mut Self, name: &str, cols| b.push(&format!("{at}.{name}_proj.weight"), vec![wide, cols], group);
        let qkv =
            ["q", "k", "v"].map(|n| (by_heads(self, n, hidden), self.whole(&format!("{at}.{n}_conv1d.weight"), vec![wide, 1, k.taps])));
        Attention::Kda(Kda {
            qkv,
            f_a: self.matrix(&format!("{at}.f_a_proj.weight"), k.width, hidden, 1),
            b: self.matrix(&format!("{at}.b_proj.weight"), k.heads, hidden, 1),
            // Stored with head_dim values, of which the first one a head counts.
            a_log: self.vector(&format!("{at}.A_log"), k.heads.max(k.width)),
            f_b: by_heads(self, "f_b", k.width),
            dt_bias: self.vector(&format!("{at}.dt_bias"), wide),
            g: by_heads(self, "g", hidden),
            o_norm: self.vector(&format!("{at}.o_norm.weight"), k.width),
            o: self.matrix(&format!("{at}.o_proj.weight"), hidden, wide, 1),
            states: (0..wide).step_by(group).map(|first| self.delta_state(group.min(wide - first))).collect(),
            heads: k.heads,
            width: k.width,
            taps: k.taps,
            group: group / k.width,
            gate_lower_bound: k.gate_lower_bound,
            eps: self.c.eps,
        })
    }

    /// The state of a group of heads with so many channels.
    fn delta_state(&mut self, channels: usize) -> StateId {
        let floats = channels * (3 * (self.c.kda.taps - 1) + self.c.kda.width);
        self.state(StateSpec::Fixed { floats, log: KDA_RECORD * channels })
    }

    fn mla(&mut self, at: &str) -> Attention {
        let (hidden, m, group) = (self.c.hidden, self.c.mla.clone(), mla_group(self.c, self.panel_bytes));
        let by_heads =
            |b: &mut Self, name: &str, rows: usize, cols| b.push(&format!("{at}.{name}.weight"), vec![m.heads * rows, cols], group * rows);
        Attention::Mla(Mla {
            kv_a: self.matrix(&format!("{at}.kv_a_proj_with_mqa.weight"), m.latent + m.shared_key, hidden, 1),
            kv_a_norm: self.vector(&format!("{at}.kv_a_layernorm.weight"), m.latent),
            q_a: self.matrix(&format!("{at}.q_a_proj.weight"), m.query_rank, hidden, 1),
            q_a_norm: self.vector(&format!("{at}.q_a_layernorm.weight"), m.query_rank),
            q_b: by_heads(self, "q_b_proj", m.key + m.shared_key, m.query_rank),
            kv_b: by_heads(self, "kv_b_proj", m.key + m.value, m.latent),
            g: by_heads(self, "g_proj", m.value, hidden),
            o: self.matrix(&format!("{at}.o_proj.weight"), hidden, m.heads * m.value, 1),
            cache: self.state(StateSpec::Appended(m.latent + m.shared_key)),
            heads: m.heads,
            group,
            query_rank: m.query_rank,
            latent: m.latent,
            key: m.key,
            shared_key: m.shared_key,
            value: m.value,
            eps: self.c.eps,
        })
    }

    fn moe(&mut self, at: &str) -> Moe {
        let (hidden, moe) = (self.c.hidden, self.c.moe.clone());
        Moe {
            gate: self.matrix(&format!("{at}.gate.weight"), moe.experts, hidden, 1),
            bias: self.vector(&format!("{at}.gate.e_score_correction_bias"), moe.experts),
            shared: self.glu(&format!("{at}.shared_experts"), moe.shared_inner),
            down: self.matrix(&format!("{at}.routed_expert_down_proj.weight"), moe.latent, hidden, 1),
            norm: moe.latent_norm.then(|| self.vector(&format!("{at}.routed_expert_norm.weight"), moe.latent)),
            up: self.matrix(&format!("{at}.routed_expert_up_proj.weight"), hidden, moe.latent, 1),
            chosen: moe.chosen,
            experts: moe.experts,
            latent: moe.latent,
            inner: moe.inner,
            scaling: moe.scaling,
            renormalize: moe.renormalize,
            eps: self.c.eps,
        }
    }
}
