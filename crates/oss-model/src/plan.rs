//! Which tensors a model needs, which of them are packed together, and in what order.

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
