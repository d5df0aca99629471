//! Which tensors a model needs, which of them are packed together, and in what order.

use crate::config::Config;
use crate::precision::Precision;
use oss_quant::{Dtype, GROUP_ROWS};
use std::collections::HashSet;
use std::fmt;

/// Rows of a tensor seen as a matrix: `first, first + step, …`, `count` of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// The tensor's name in the file.
    pub(crate) tensor: String,
    /// The first row.
    pub(crate) first: usize,
    /// From one row to the next.
    pub(crate) step: usize,
    /// How many rows.
    pub(crate) count: usize,
    /// For files that store the two halves of each rotated head interleaved: numbers in a head.
    pub(crate) interleaved_heads: Option<usize>,
    /// For matrices of all experts in one tensor: how many experts.
    pub(crate) experts: Option<usize>,
}

impl Rows {
    /// All `count` rows of a tensor.
    pub(crate) fn all(tensor: String, count: usize) -> Self {
        Self { tensor, first: 0, step: 1, count, interleaved_heads: None, experts: None }
    }

    /// The row of the tensor that is row `index` of these.
    ///
    /// In an interleaved head of d rows, rows i and i + d/2 of the plain order lie at 2 i and
    /// 2 i + 1.
    pub(crate) fn source(&self, index: usize) -> usize {
        debug_assert!(index < self.count);
        let index = match self.interleaved_heads {
            None => index,
            Some(dim) => {
                let (head, i) = (index / dim, index % dim);
                head * dim + if i < dim / 2 { 2 * i } else { 2 * (i - dim / 2) + 1 }
            }
        };
        self.first + index * self.step
    }
}

/// A matrix of the model, made of rows of one or more tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MatrixPlan {
    /// One below the other.
    Stacked(Vec<Rows>),
    /// Sixteen rows of the first, sixteen of the second, and so on: gate and up.
    Paired(Rows, Rows),
}

impl MatrixPlan {
    /// All rows of one tensor.
    pub(crate) fn one(tensor: String, count: usize) -> Self {
        Self::Stacked(vec![Rows::all(tensor, count)])
    }

    /// The rows that a row of the matrix is one of, and which of them.
    pub(crate) fn row(&self, index: usize) -> (&Rows, usize) {
        match self {
            Self::Stacked(parts) => {
                let mut index = index;
                for rows in parts {
                    if index < rows.count {
                        return (rows, index);
                    }
                    index -= rows.count;
                }
                panic!("row {index} beyond the parts");
            }
            Self::Paired(first, second) => {
                let (group, lane) = (index / GROUP_ROWS, index % GROUP_ROWS);
                let of = if group.is_multiple_of(2) { first } else { second };
                (of, group / 2 * GROUP_ROWS + lane)
            }
        }
    }

    /// The tensors whose rows it takes, each once.
    pub(crate) fn tensors(&self) -> Vec<&str> {
        let mut names: Vec<&str> = match self {
            Self::Stacked(parts) => parts.iter().map(|rows| rows.tensor.as_str()).collect(),
            Self::Paired(first, second) => vec![&first.tensor, &second.tensor],
        };
        names.dedup();
        names
    }
}

/// A place in the model whose matrices change their type together, as a precision plan is sought.
/// Layers count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Site {
    /// Queries, keys and values of a layer.
    Qkv(usize),
    /// The output of its attention.
    Output(usize),
    /// Gate and up of a layer with one network.
    GateUp(usize),
    /// Down of such a layer.
    Down(usize),
    /// All experts of a layer. Its router stays as it is.
    Experts(usize),
    /// The head.
    Head,
}

/// A vector of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VectorPlan {
    /// One after the other.
    Stacked(Vec<Numbers>),
    /// Sixteen numbers of the first, sixteen of the second, and so on, for each of `repeat`
    /// networks.
    Paired {
        /// Numbers of the gates, network after network.
        gate: Numbers,
        /// Numbers of the ups.
        up: Numbers,
        /// How many networks.
        repeat: usize,
    },
}

/// A part of a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// A tensor's.
    Of(Rows),
    /// So many zeros, where the model has no such tensor.
    Zeros(usize),
}

impl VectorPlan {
    /// All numbers of one tensor.
    pub(crate) fn one(tensor: String, count: usize) -> Self {
        Self::Stacked(vec![Numbers::Of(Rows::all(tensor, count))])
    }

    /// None where no part of it is a tensor's.
    pub(crate) fn unless_zeros(self) -> Option<Self> {
        let has_tensors = !self.tensors().is_empty();
        has_tensors.then_some(self)
    }

    /// The tensors whose numbers it takes.
    fn tensors(&self) -> Vec<&str> {
        let parts: Vec<&Numbers> = match self {
            Self::Stacked(parts) => parts.iter().collect(),
            Self::Paired { gate, up, .. } => vec![gate, up],
        };
        parts.into_iter().filter_map(Numbers::tensor).collect()
    }
}

impl Numbers {
    /// The tensor that they are of.
    fn tensor(&self) -> Option<&str> {
        match self {
            Self::Of(rows) => Some(&rows.tensor),
            Self::Zeros(_) => None,
        }
    }
}

/// All tensors of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPlan {
    /// `[vocabulary, hidden_dim]`: what tokens look up.
    pub(crate) embedding: String,
    /// The normalisation before the head.
    pub(crate) norm: VectorPlan,
    /// `[vocabulary, hidden_dim]`; `None`: the embedding serves.
    pub(crate) head: Option<String>,
    /// The layers.
    pub(crate) layers: Vec<LayerPlan>,
}

impl Site {
    /// Its layer; none of the head.
    #[must_use]
    pub const fn layer(self) -> Option<usize> {
        match self {
            Self::Qkv(layer)
            | Self::Output(layer)
            | Self::GateUp(layer)
            | Self::Down(layer)
            | Self::Experts(layer) => Some(layer),
            Self::Head => None,
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(layer) = self.layer() {
            write!(f, "{layer}: ")?;
        }
        f.write_str(match self {
            Self::Qkv(_) => "queries, keys, values",
            Self::Output(_) => "attention's output",
            Self::GateUp(_) => "gate and up",
            Self::Down(_) => "down",
            Self::Experts(_) => "experts",
            Self::Head => "head",
        })
    }
}

impl ModelPlan {
    /// Whether tokens are looked up in the head's matrix.
    #[must_use]
    pub const fn is_tied(&self) -> bool {
        self.head.is_none()
    }

    /// The names of all tensors.
    pub(crate) fn tensors(&self) -> HashSet<&str> {
        let mut names = HashSet::from([self.embedding.as_str()]);
        names.extend(self.head.as_deref());
        names.extend(self.norm.tensors());
        for layer in &self.layers {
            let mut vectors = vec![&layer.attention_norm, &layer.feed_forward_norm];
            let mut matrices = vec![&layer.qkv, &layer.output];
            vectors.extend(&layer.qkv_bias);
            vectors.extend(&layer.output_bias);
            vectors.extend(&layer.sinks);
            vectors.extend(&layer.gate_up_bias);
            vectors.extend(&layer.down_bias);
            let networks = match &layer.feed_forward {
                FeedForwardPlan::Dense(network) => std::slice::from_ref(&**network),
                FeedForwardPlan::Experts(plan) => {
                    matrices.push(&plan.router);
                    vectors.extend(&plan.router_bias);
                    &plan.experts
                }
            };
            matrices.extend(networks.iter().flat_map(|network| [&network.gate_up, &network.down]));
            names.extend(vectors.into_iter().flat_map(VectorPlan::tensors));
            names.extend(matrices.into_iter().flat_map(MatrixPlan::tensors));
        }
        names
    }

    /// The places whose types can be chosen, in the order of the forward pass.
    #[must_use]
    pub fn sites(&self) -> Vec<Site> {
        let mut sites = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            sites.extend([Site::Qkv(index), Site::Output(index)]);
            match layer.feed_forward {
                FeedForwardPlan::Dense(_) => {
                    sites.extend([Site::GateUp(index), Site::Down(index)]);
                }
                FeedForwardPlan::Experts(_) => sites.push(Site::Experts(index)),
            }
        }
        sites.push(Site::Head);
        sites
    }

    /// The matrices of a place and their columns.
    ///
    /// # Panics
    /// When the model has no such place.
    pub(crate) fn matrices(&self, config: &Config, site: Site) -> Vec<(MatrixPlan, usize)> {
        let hidden = config.hidden_dim;
        let (layer, network) = match site {
            Site::Head => {
                let head = self.head.as_ref().unwrap_or(&self.embedding);
                return vec![(MatrixPlan::one(head.clone(), config.vocabulary), hidden)];
            }
            Site::Qkv(layer) => return vec![(self.layers[layer].qkv.clone(), hidden)],
            Site::Output(layer) => {
                return vec![(self.layers[layer].output.clone(), config.q_dim())];
            }
            Site::GateUp(layer) | Site::Down(layer) | Site::Experts(layer) => {
                (layer, &self.layers[layer].feed_forward)
            }
        };
        let inner = config.layers[layer].feed_forward.intermediate_dim();
        let gate_up = |network: &NetworkPlan| (network.gate_up.clone(), hidden);
        let down = |network: &NetworkPlan| (network.down.clone(), inner);
        match (network, site) {
            (FeedForwardPlan::Dense(network), Site::GateUp(_)) => vec![gate_up(network)],
            (FeedForwardPlan::Dense(network), Site::Down(_)) => vec![down(network)],
            (FeedForwardPlan::Experts(plan), Site::Experts(_)) => {
                plan.experts.iter().flat_map(|expert| [gate_up(expert), down(expert)]).collect()
            }
            _ => panic!("no {site:?} in this model"),
        }
    }

    /// A plan in which all tensors of a place are packed as `dtype`.
    ///
    /// # Panics
    /// When the model has no such place.
    #[must_use]
    pub fn precision(&self, config: &Config, site: Site, dtype: Dtype) -> Precision {
        let mut precision = Precision::default();
        for (matrix, _) in self.matrices(config, site) {
            for tensor in matrix.tensors() {
                precision.set(tensor, dtype);
            }
        }
        precision
    }
}

/// The tensors of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerPlan {
    /// The normalisation before attention.
    pub(crate) attention_norm: VectorPlan,
    /// `[q_dim + 2 kv_dim, hidden_dim]`: query, key and value.
    pub(crate) qkv: MatrixPlan,
    /// Its biases.
    pub(crate) qkv_bias: Option<VectorPlan>,
    /// `[hidden_dim, q_dim]`.
    pub(crate) output: MatrixPlan,
    /// Its biases.
    pub(crate) output_bias: Option<VectorPlan>,
    /// One logit per query head.
    pub(crate) sinks: Option<VectorPlan>,
    /// The normalisation before the feed-forward half.
    pub(crate) feed_forward_norm: VectorPlan,
    /// The feed-forward half.
    pub(crate) feed_forward: FeedForwardPlan,
    /// `[networks, 2 intermediate_dim]`, paired: the biases of its first matrices.
    pub(crate) gate_up_bias: Option<VectorPlan>,
    /// `[networks, hidden_dim]`: those of its second ones.
    pub(crate) down_bias: Option<VectorPlan>,
}

/// The matrices of a feed-forward half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FeedForwardPlan {
    /// One network.
    Dense(Box<NetworkPlan>),
    /// A router and its experts.
    Experts(Box<ExpertsPlan>),
}

/// The tensors of a router, and its experts' matrices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpertsPlan {
    /// `[n_experts, hidden_dim]`.
    pub(crate) router: MatrixPlan,
    /// Its biases.
    pub(crate) router_bias: Option<VectorPlan>,
    /// The experts.
    pub(crate) experts: Vec<NetworkPlan>,
}

/// The two matrices of a gated network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkPlan {
    /// `[2 intermediate_dim, hidden_dim]`, paired.
    pub(crate) gate_up: MatrixPlan,
    /// `[hidden_dim, intermediate_dim]`.
    pub(crate) down: MatrixPlan,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_heads_are_read_back_in_plain_order() {
        let rows = Rows { interleaved_heads: Some(8), ..Rows::all("q".into(), 16) };
        let order: Vec<usize> = (0..16).map(|i| rows.source(i)).collect();
        assert_eq!(order, [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]);
    }

    #[test]
    fn every_second_row_is_the_gate() {
        let rows = Rows { first: 20, step: 2, ..Rows::all("gate_up".into(), 5) };
        assert_eq!((0..5).map(|i| rows.source(i)).collect::<Vec<_>>(), [20, 22, 24, 26, 28]);
    }
}
