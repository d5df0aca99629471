//! Fewer bits for a model's weights, by what they cost: precision plans from measured sensitivity.
//!
//! Each place of the model (the queries, keys and values of a layer, the experts of one, the head)
//! is packed alone in each type of fewer bits, and the model's output is compared with that of the
//! unchanged model. [`Quantise::plan`] combines the types that save most for what they cost, and
//! measures the whole: its loss keeps to the limit, also on held-out text.
//!
//! ```
//! use oss_engine::{Container, Special, Text, pack::pack_to_file, quantise::Quantise};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let container = Arc::new(Container::from_bytes("the demo model", oss_demo::GGUF, Vec::new())?);
//! let text = Text::from_container(&container)?;
//! let texts = [
//!     text.encode("Once upon a time, there was a little dog.", Special::AsText)?,
//!     text.encode("The sun was warm.", Special::AsText)?,
//! ];
//!
//! let quantise = Quantise { max_loss: 0.01, ..Quantise::default() };
//! let plan = quantise.plan(container.clone(), &texts, &mut |_| ())?;
//! assert!(plan.loss <= 0.01 && plan.bytes_after <= plan.bytes_before);
//!
//! let folder = tempfile::tempdir()?;
//! pack_to_file(&container, &plan.precision, &folder.path().join("small.oss"), None)?;
//! # Ok(())
//! # }
//! ```

mod choose;
mod meter;

use crate::budget::context_bytes;
use crate::error::{Error, Result};
use choose::{Candidate, choose};
use meter::{Meter, Windows};
use oss_kernels::Activation;
use oss_model::{LoadOptions, Model, ModelPlan, Precision, Site, describe, site_bytes};
use oss_quant::Dtype;
use oss_quant::kv::KvFormat;
use oss_simd::Isa;
use oss_threads::{Team, TeamOptions};
use oss_weights::{Container, Kind};
use std::sync::Arc;

/// How many tokens are read together at most: longer texts are cut, and a single one in two.
pub const WINDOW: usize = 256;

/// How often a whole plan is measured at most: each time the budget comes nearer to the limit.
const ROUNDS: usize = 8;

/// What is looked for.
#[derive(Clone, Debug)]
pub struct Quantise {
    /// The largest loss that a plan may have, see [`Plan::loss`]: 0.01 is one per cent.
    pub max_loss: f64,
    /// The types that are tried, where they take fewer bytes than the file's own.
    pub types: Vec<Dtype>,
    /// How activations meet weights in what is compared.
    pub activation: Activation,
    /// Threads; `None`: one a performance core that this process may use.
    pub threads: Option<usize>,
}

impl Default for Quantise {
    fn default() -> Self {
        let types = Dtype::QUANTISED.to_vec();
        Self { max_loss: 0.01, types, activation: Activation::Int8, threads: None }
    }
}

/// A place of the model in one of the types that were tried.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Trial {
    /// The place.
    pub site: Site,
    /// The type of all its matrices.
    pub dtype: Dtype,
    /// Bytes that a token then reads of them.
    pub bytes: usize,
    /// The loss with this place alone in that type.
    pub loss: f64,
    /// How many trials have been made, this one included.
    pub done: usize,
    /// How many trials are made in all.
    pub of: usize,
}

/// Which type each matrix is packed as, and what that costs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// The types, for [`pack_to_file`](oss_model::pack_to_file).
    pub precision: Precision,
    /// The places that are packed as another type than the file's, and that type.
    pub changed: Vec<(Site, Dtype)>,
    /// By how much the perplexity of the model so packed is above its own, on text as it would
    /// write it itself: `exp(mean KL divergence) - 1`, over texts that no choice was made by. Of
    /// the divergence at each position the 64 likeliest tokens are seen and all others as one.
    pub loss: f64,
    /// The share of those texts' positions at which the likeliest token is the same.
    pub same_token: f64,
    /// Bytes of weights that a token reads where matrices have the file's own types.
    pub bytes_before: usize,
    /// Bytes of weights that a token reads where they have the plan's types.
    pub bytes_after: usize,
}

impl Quantise {
    /// Looks for the plan with the fewest bytes a token whose loss keeps to the limit, over windows
    /// of the texts, each a sequence of its own: every second one is kept for measuring whole plans
    /// alone. The model is packed in memory, and what is tried beside it.
    /// `watch` sees every trial.
    ///
    /// The plan does not depend on the number of threads.
    ///
    /// # Errors
    /// [`Error::Option`] when an option is out of its range, or the texts have less than two
    /// tokens; [`Error::Unsupported`] for a packed file; when the model cannot be loaded.
    pub fn plan(
        &self,
        container: Arc<Container>,
        texts: &[Vec<u32>],
        watch: &mut dyn FnMut(Trial),
    ) -> Result<Plan> {
        let longest = texts.iter().map(Vec::len).sum::<usize>().div_ceil(2).clamp(1, WINDOW);
        let windows: Vec<&[u32]> = texts.iter().flat_map(|text| text.chunks(longest)).collect();
        self.check(&container)?;
        if windows.len() < 2 {
            let read = windows.iter().map(|window| window.len()).sum::<usize>();
            let (got, expected) = (format!("{read} tokens"), "at least 2".to_owned());
            return Err(Error::Option { field: "texts", got, expected });
        }
        let (_, plan) = describe(&container)?;
        let load = LoadOptions {
            activation: self.activation,
            kv_format: KvFormat::F32,
            ..LoadOptions::new(Isa::detect()?)
        };
        let model = Model::load(container.clone(), load)?;
        let team = match self.threads {
            Some(threads) => Team::new(threads)?,
            None => Team::with_options(&TeamOptions::default())?,
        };
        let meter = Meter::new(&model, team, context_bytes(&model, WINDOW, WINDOW), &windows)?;
        let sites = plan.sites();
        let applied = vec![None; sites.len()];
        let mut search = Search { container, plan, model, meter, sites, applied };
        let trials = search.try_all(&self.types, watch)?;
        search.best(&trials, self.max_loss)
    }

    /// Refuses what no plan can be made of or with, before any work: the first thing that
    /// [`Self::plan`] does.
    ///
    /// # Errors
    /// [`Error::Option`] when an option is out of its range; [`Error::Unsupported`] for a packed
    /// file.
    pub fn check(&self, container: &Container) -> Result<()> {
        let wrong = |field, got: String, expected: &str| {
            Err(Error::Option { field, got, expected: expected.to_owned() })
        };
        if container.kind() == Kind::Packed {
            let (what, got) = ("quantising", "a packed file".to_owned());
            let expected = "the GGUF file or safetensors that it was made from".to_owned();
            return Err(Error::Unsupported { what, got, expected });
        }
        if !(self.max_loss.is_finite() && self.max_loss >= 0.0) {
            return wrong("max_loss", self.max_loss.to_string(), "a number of at least 0");
        }
        match self.types.iter().find(|dtype| !dtype.is_weight()) {
            Some(dtype) => wrong("types", dtype.name().to_owned(), "types of weights"),
            None => Ok(()),
        }
    }
}

/// A model whose places are packed again and again.
struct Search {
    container: Arc<Container>,
    plan: ModelPlan,
    model: Model,
    meter: Meter,
    sites: Vec<Site>,
    /// What each place is packed as; `None`: as in the file.
    applied: Vec<Option<Dtype>>,
}

/// What was found out about a place: its bytes as in the file, and what else it may be.
struct Trials {
    bytes: usize,
    candidates: Vec<Candidate>,
}

impl Search {
    fn precision(&self, site: Site, dtype: Option<Dtype>) -> Precision {
        let precision = |dtype| self.plan.precision(&self.model.config, site, dtype);
        dtype.map(precision).unwrap_or_default()
    }

    fn bytes(&self, site: Site, dtype: Option<Dtype>) -> Result<usize, oss_model::Error> {
        let about = (&self.model.config, &self.plan);
        site_bytes(&self.container, about, site, &self.precision(site, dtype))
    }

    /// The first layer that notices a place: those before it compute what they did at first.
    fn first_layer(&self, site: Site) -> usize {
        match site.layer() {
            Some(layer) => layer,
            // Tokens are looked up in the head, too.
            None if self.plan.is_tied() => 0,
            None => self.model.config.layers.len(),
        }
    }

    /// Packs each place as told, where it is not yet.
    fn apply(&mut self, wanted: &[Option<Dtype>]) -> Result<()> {
        for (index, wanted) in wanted.iter().enumerate() {
            if self.applied[index] == *wanted {
                continue;
            }
            let precision = self.precision(self.sites[index], *wanted);
            let Model { config, weights, .. } = &mut self.model;
            weights.repack((config, &self.plan), self.sites[index], &precision)?;
            self.applied[index] = *wanted;
        }
        Ok(())
    }

    /// Packs each place alone in each type that takes fewer bytes.
    fn try_all(&mut self, types: &[Dtype], watch: &mut dyn FnMut(Trial)) -> Result<Vec<Trials>> {
        let mut all = Vec::new();
        for &site in &self.sites {
            let bytes = self.bytes(site, None)?;
            let mut candidates = Vec::new();
            for &dtype in types {
                match self.bytes(site, Some(dtype)) {
                    Ok(less) if less < bytes => {
                        candidates.push(Candidate { dtype, bytes: less, loss: 0.0 });
                    }
                    // Its blocks are not the matrix's columns.
                    Ok(_) | Err(oss_model::Error::Packing { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            all.push(Trials { bytes, candidates });
        }
        let of = all.iter().map(|trials| trials.candidates.len()).sum();
        let mut done = 0;
        for (index, trials) in all.iter_mut().enumerate() {
            let mut wanted = vec![None; self.sites.len()];
            self.meter.begin_at(&self.model, self.first_layer(self.sites[index]))?;
            for candidate in &mut trials.candidates {
                wanted[index] = Some(candidate.dtype);
                self.apply(&wanted)?;
                candidate.loss = self.meter.measure(&self.model, Windows::Choosing)?.loss;
                done += 1;
                let Candidate { dtype, bytes, loss } = *candidate;
                let site = self.sites[index];
                watch(Trial { site, dtype, bytes, loss: loss.exp_m1(), done, of });
            }
            wanted[index] = None;
            self.apply(&wanted)?;
        }
        self.meter.begin_at(&self.model, 0)?;
        Ok(all)
    }

    /// The plan with the fewest bytes that was measured to keep to the limit.
    fn best(&mut self, trials: &[Trials], max_loss: f64) -> Result<Plan> {
        let limit = max_loss.ln_1p();
        let all: Vec<(usize, &[Candidate])> =
            trials.iter().map(|trials| (trials.bytes, trials.candidates.as_slice())).collect();
        let bytes_before = trials.iter().map(|trials| trials.bytes).sum();
        let mut best = Plan {
            precision: Precision::default(),
            changed: Vec::new(),
            loss: 0.0,
            same_token: 1.0,
            bytes_before,
            bytes_after: bytes_before,
        };
        // Losses do not simply add up: the budget for their sum is sought by halving, once one is
        // found that does.
        let (mut kept, mut broken, mut budget) = (0.0, f64::INFINITY, limit);
        for _ in 0..ROUNDS {
            let chosen = choose(&all, budget);
            let wanted: Vec<Option<Dtype>> =
                chosen.iter().map(|candidate| candidate.map(|chosen| chosen.dtype)).collect();
            self.apply(&wanted)?;
            let chosen_by = self.meter.measure(&self.model, Windows::Choosing)?;
            let checked = self.meter.measure(&self.model, Windows::Checking)?;
            let bytes = chosen.iter().zip(trials);
            let bytes = bytes.map(|(chosen, trials)| chosen.map_or(trials.bytes, |c| c.bytes));
            let bytes_after = bytes.sum();
            if chosen_by.loss.max(checked.loss) <= limit {
                kept = budget;
                if bytes_after < best.bytes_after {
                    let sites = self.sites.iter().zip(&wanted);
                    best.changed =
                        sites.filter_map(|(site, dtype)| Some((*site, (*dtype)?))).collect();
                    best.loss = checked.loss.exp_m1();
                    best.same_token = checked.same_token;
                    best.bytes_after = bytes_after;
                }
            } else {
                broken = budget;
            }
            budget = match (kept > 0.0, broken.is_finite()) {
                (true, true) => f64::midpoint(kept, broken),
                (true, false) => 2.0 * budget,
                (false, _) => budget / 4.0,
            };
        }
        for (site, dtype) in &best.changed {
            best.precision.extend(&self.precision(*site, Some(*dtype)));
        }
        Ok(best)
    }
}
