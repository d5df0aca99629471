//! Packing some matrices again, as another type: how a precision plan is tried.

use super::layout::Layout;
use super::storage::Storage;
use super::{FeedForwardWeights, LayerWeights, Network, PackedMatrix, Weights, pack};
use crate::config::{Config, FeedForward};
use crate::error::{Error, Result};
use crate::plan::{ModelPlan, Site};
use crate::precision::Precision;
use oss_weights::Container;
use std::sync::Arc;

impl Weights {
    /// Packs the matrices of a place again, as `precision` says; tensors that it does not name, as
    /// the file has them. The memory that they were loaded into stays taken.
    ///
    /// # Errors
    /// When the weights were not packed in memory, a type cannot hold a matrix, `precision` names
    /// what is not there, or memory is refused: then everything is as before.
    ///
    /// # Panics
    /// When the model has no such place.
    pub fn repack(
        &mut self,
        (config, plan): (&Config, &ModelPlan),
        site: Site,
        precision: &Precision,
    ) -> Result<()> {
        let container = Arc::clone(&self.container);
        let Storage::Memory(sections) = &mut self.storage else {
            return Err(Error::Unsupported {
                path: container.path().to_owned(),
                what: "packing some matrices again",
                got: "a packed file".to_owned(),
                expected: "a GGUF file or safetensors".to_owned(),
            });
        };
        let (layout, matrices) = arrange(&container, (config, plan), site, precision)?;
        let packed = pack::to_memory(&layout, self.pages, None)?;

        // Sections that were loaded are not replaced: other matrices lie there too.
        let loaded = 1 + self.layers.iter().filter(|layer| layer.feed_forward.has_router()).count();
        let places = places(&mut self.layers, &mut self.head, site);
        let before = places[0].parts[0].1.section;
        let number = if before < loaded { sections.len() } else { before };
        for (place, mut matrix) in places.into_iter().zip(matrices) {
            matrix.parts.iter_mut().for_each(|(_, location)| location.section = number);
            *place = matrix;
        }
        for section in packed {
            match sections.get_mut(number) {
                Some(place) => *place = section,
                None => sections.push(section),
            }
        }
        Ok(())
    }
}

/// Bytes that one token reads of the matrices of a place when they are packed as `precision` says:
/// of experts those of the few that it is sent to.
///
/// # Errors
/// When a type cannot hold a matrix, or `precision` names what is not there.
///
/// # Panics
/// When the model has no such place.
pub fn site_bytes(
    container: &Container,
    (config, plan): (&Config, &ModelPlan),
    site: Site,
    precision: &Precision,
) -> Result<usize> {
    let (_, matrices) = arrange(container, (config, plan), site, precision)?;
    let parts = matrices.iter().flat_map(|matrix| &matrix.parts);
    let bytes: usize = parts.map(|(_, location)| location.packing.bytes()).sum();
    let Site::Experts(layer) = site else { return Ok(bytes) };
    match config.layers[layer].feed_forward {
        FeedForward::Experts { n_experts, top_k, .. } => Ok(bytes / n_experts * top_k),
        FeedForward::Dense { .. } => panic!("layer {layer} has no experts"),
    }
}

/// The matrices of a place, in a section of their own.
fn arrange<'a>(
    container: &'a Container,
    (config, plan): (&Config, &ModelPlan),
    site: Site,
    precision: &Precision,
) -> Result<(Layout<'a>, Vec<PackedMatrix>)> {
    let mut layout = Layout::new(container, precision)?;
    layout.begin(format!("{site:?}"));
    let planned = plan.matrices(config, site);
    let matrices = planned.iter().map(|(matrix, columns)| layout.matrix(matrix, *columns));
    let matrices = matrices.collect::<Result<_>>()?;
    layout.check_precision()?;
    Ok((layout, matrices))
}

/// Where the matrices of a place stand, in the order of [`ModelPlan::matrices`].
fn places<'a>(
    layers: &'a mut [LayerWeights],
    head: &'a mut PackedMatrix,
    site: Site,
) -> Vec<&'a mut PackedMatrix> {
    let (layer, network) = match site {
        Site::Head => return vec![head],
        Site::Qkv(layer) => return vec![&mut layers[layer].qkv],
        Site::Output(layer) => return vec![&mut layers[layer].output],
        Site::GateUp(layer) | Site::Down(layer) | Site::Experts(layer) => {
            (layer, &mut layers[layer].feed_forward)
        }
    };
    match (network, site) {
        (FeedForwardWeights::Dense(network), Site::GateUp(_)) => vec![&mut network.gate_up],
        (FeedForwardWeights::Dense(network), Site::Down(_)) => vec![&mut network.down],
        (FeedForwardWeights::Experts(weights), Site::Experts(_)) => {
            let both = |expert: &'a mut Network| [&mut expert.gate_up, &mut expert.down];
            weights.experts.iter_mut().flat_map(both).collect()
        }
        _ => panic!("no {site:?} in layer {layer}"),
    }
}
