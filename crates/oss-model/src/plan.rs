//! Which tensors a model needs, which of them are packed together, and in what order.

use crate::config::Config;
use crate::precision::Precision;
use oss_quant::Dtype;
use std::fmt;

/// Rows of a tensor seen as a matrix: `first, first + step, …`, `count` of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    /// The tensor's name in the file.
    pub tensor: String,
    /// The first row.
    pub first: usize,
    /// From one row to the next.
    pub step: usize,
    /// How many rows.
    pub count: usize,
    /// For files that store the two halves of each rotated head interleaved: numbers in a head.
    pub interleaved_heads: Option<usize>,
}

impl Rows {
    /// All `count` rows of a tensor.
    #[must_use]
    pub fn all(tensor: String, count: usize) -> Self {
        Self { tensor, first: 0, step: 1, count, interleaved_heads: None }
    }

    /// The row of the tensor that is row `index` of these.
    ///
    /// In an interleaved head of d rows, rows i and i + d/2 of the plain order lie at 2 i and
    /// 2 i + 1.
    #[must_use]
    pub fn source(&self, index: usize) -> usize {
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
pub enum MatrixPlan {
    /// One below the other.
    Stacked(Vec<Rows>),
    /// Sixteen rows of the first, sixteen of the second, and so on: gate and up.
    Paired(Rows, Rows),
}

impl MatrixPlan {
    /// All rows of one tensor.
    #[must_use]
    pub fn one(tensor: String, count: usize) -> Self {
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
                let (pair, lane) = (index / 32, index % 32);
                if lane < 16 { (first, 16 * pair + lane) } else { (second, 16 * pair + lane - 16) }
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
pub enum VectorPlan {
    /// One after the other.
    Stacked(Vec<Rows>),
    /// Sixteen numbers of the first, sixteen of the second, and so on, for each of `repeat`
    /// experts.
    Paired {
        /// Numbers of the gates, expert after expert.
        gate: Rows,
        /// Numbers of the ups.
        up: Rows,
        /// How many experts.
        repeat: usize,
    },
}

impl VectorPlan {
    /// All numbers of one tensor.
    #[must_use]
    pub fn one(tensor: String, count: usize) -> Self {
        Self::Stacked(vec![Rows::all(tensor, count)])
    }
}

/// All tensors of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPlan {
    /// `[vocabulary, hidden_dim]`: what tokens look up.
    pub embedding: String,
    /// The normalisation before the head.
    pub norm: VectorPlan,
    /// `[vocabulary, hidden_dim]`; `None`: the embedding serves.
    pub head: Option<String>,
    /// The layers.
    pub layers: Vec<LayerPlan>,
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
        let inner = config.layers[layer].feed_forward.inner_dim();
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
pub struct LayerPlan {
    /// The normalisation before attention.
    pub attention_norm: VectorPlan,
    /// `[q_dim + 2 kv_dim, hidden_dim]`: query, key and value.
    pub qkv: MatrixPlan,
    /// Its biases.
    pub qkv_bias: Option<VectorPlan>,
    /// `[hidden_dim, q_dim]`.
    pub output: MatrixPlan,
    /// Its biases.
    pub output_bias: Option<VectorPlan>,
    /// One logit per query head.
    pub sinks: Option<VectorPlan>,
    /// The normalisation before the feed-forward half.
    pub feed_forward_norm: VectorPlan,
    /// The feed-forward half.
    pub feed_forward: FeedForwardPlan,
}

/// The tensors of a feed-forward half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FeedForwardPlan {
    /// One network.
    Dense(Box<NetworkPlan>),
    /// A router and its experts.
    Experts(Box<ExpertsPlan>),
}

/// The tensors of a router and its experts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertsPlan {
    /// `[n_experts, hidden_dim]`.
    pub router: MatrixPlan,
    /// Its biases.
    pub router_bias: Option<VectorPlan>,
    /// The experts.
    pub experts: Vec<NetworkPlan>,
    /// `[n_experts, 2 inner_dim]`, paired.
    pub gate_up_bias: Option<VectorPlan>,
    /// `[n_experts, hidden_dim]`.
    pub down_bias: Option<VectorPlan>,
}

/// The two matrices of a gated network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPlan {
    /// `[2 inner_dim, hidden_dim]`, paired.
    pub gate_up: MatrixPlan,
    /// `[hidden_dim, inner_dim]`.
    pub down: MatrixPlan,
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
