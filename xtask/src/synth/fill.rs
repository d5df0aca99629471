//! Random bytes of every element type, made where possible without a float in between.

use anyhow::Result;
use half::{bf16, f16};
use oss_quant::Dtype;
use oss_testing::Seeded;

use crate::synth::plan::{Entry, Fill};

/// Elements of one chunk: each has its own random stream, so that chunks can be made in parallel
/// and the file does not depend on how many threads made it. A multiple of every block length.
pub(crate) const CHUNK: usize = 1 << 20;

/// The bytes of elements `CHUNK * chunk ..` of an entry, at most `CHUNK` elements.
pub(crate) fn chunk(entry: &Entry, index: usize, chunk: usize, seed: u64) -> Result<Vec<u8>> {
    let dtype = entry.plan.dtype;
    let total: usize = entry.plan.shape.iter().product();
    let elements = CHUNK.min(total - chunk * CHUNK);
    // Tensor and chunk go into disjoint bits; `Seeded` spreads them.
    let stream = ((index as u64) << 32 | chunk as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = Seeded::new(seed ^ stream);
    let bytes = elements / dtype.block_len() * dtype.block_bytes();
    let mut out = vec![0u8; bytes];
    match &entry.fill {
        Fill::Values(values) => floats(dtype, values, &mut out)?,
        Fill::Norm => {
            let values: Vec<f32> = (0..elements).map(|_| random.uniform(0.9, 1.1)).collect();
            floats(dtype, &values, &mut out)?;
        }
        Fill::Codes => random_bytes(&mut random, &mut out),
        Fill::Scales(deviation) => {
            let scale = Exponent::new(*deviation);
            out.iter_mut().for_each(|byte| *byte = scale.draw(&mut random));
        }
        Fill::Random(deviation) => weights(dtype, *deviation, &mut random, &mut out)?,
    }
    Ok(out)
}

fn weights(dtype: Dtype, deviation: f32, random: &mut Seeded, out: &mut [u8]) -> Result<()> {
    match dtype {
        Dtype::Mxfp4 => {
            let scale = Exponent::new(deviation);
            for block in out.chunks_exact_mut(17) {
                block[0] = scale.draw(random);
                random_bytes(random, &mut block[1..]);
            }
        }
        Dtype::Q8_0 => {
            // Codes uniform over -127 ..= 127 have deviation 73.3.
            let scale = deviation / 73.3;
            for block in out.chunks_exact_mut(34) {
                block[..2].copy_from_slice(&half_scale(scale, random));
                random_bytes(random, &mut block[2..]);
                for code in block[2..].iter_mut().filter(|code| **code == 0x80) {
                    *code = 0;
                }
            }
        }
        Dtype::Q4_0 => {
            // Codes 1 ..= 15 around 8, with 8 twice as often: no bias, deviation 4.18.
            let scale = deviation / 4.18;
            for block in out.chunks_exact_mut(18) {
                block[..2].copy_from_slice(&half_scale(scale, random));
                random_bytes(random, &mut block[2..]);
                for byte in &mut block[2..] {
                    *byte |= if *byte & 0x0f == 0 { 0x08 } else { 0 };
                    *byte |= if *byte & 0xf0 == 0 { 0x80 } else { 0 };
                }
            }
        }
        _ => {
            // Uniform numbers: as good as normal ones after one sum of hundreds, and cheaper.
            let reach = deviation * 3f32.sqrt();
            let n = out.len() / dtype.block_bytes() * dtype.block_len();
            let values: Vec<f32> = (0..n).map(|_| random.uniform(-reach, reach)).collect();
            floats(dtype, &values, out)?;
        }
    }
    Ok(())
}

fn floats(dtype: Dtype, values: &[f32], out: &mut [u8]) -> Result<()> {
    match dtype {
        Dtype::F32 => {
            for (bytes, value) in out.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        Dtype::Bf16 => {
            for (bytes, value) in out.chunks_exact_mut(2).zip(values) {
                bytes.copy_from_slice(&bf16::from_f32(*value).to_le_bytes());
            }
        }
        Dtype::F16 => {
            for (bytes, value) in out.chunks_exact_mut(2).zip(values) {
                bytes.copy_from_slice(&f16::from_f32(*value).to_le_bytes());
            }
        }
        other => other.quantise_row(values, out)?,
    }
    Ok(())
}

/// A scale between 3/4 and 5/4 of this one, as the two bytes of an f16.
fn half_scale(scale: f32, random: &mut Seeded) -> [u8; 2] {
    f16::from_f32(scale * (0.75 + (random.bits() >> 40) as f32 * (0.5 / (1 << 24) as f32)))
        .to_le_bytes()
}

fn random_bytes(random: &mut Seeded, out: &mut [u8]) {
    for bytes in out.chunks_mut(8) {
        bytes.copy_from_slice(&random.bits().to_le_bytes()[..bytes.len()]);
    }
}

/// Two neighbouring e8m0 exponents, mixed so that uniform e2m1 codes get a wanted deviation.
struct Exponent {
    low: u8,
    /// Of 2³², how often the higher one.
    higher: u64,
}

impl Exponent {
    fn new(deviation: f32) -> Exponent {
        // The mean square of the 16 codes' values.
        let square = f64::from(deviation).powi(2) / 8.5625;
        let low = (square.log2() / 2.0).floor();
        let fraction = (square / (2.0 * low).exp2() - 1.0) / 3.0;
        Exponent { low: (low + 127.0) as u8, higher: (fraction * 2f64.powi(32)) as u64 }
    }

    fn draw(&self, random: &mut Seeded) -> u8 {
        self.low + u8::from(random.bits() >> 32 < self.higher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oss_simd::Isa;
    use oss_weights::TensorPlan;

    #[test]
    fn every_type_has_the_deviation_asked_for_and_no_bias() {
        for dtype in Dtype::all().filter(|dtype| dtype.is_weight() && *dtype != Dtype::F64) {
            let plan = TensorPlan { name: "w".into(), dtype, shape: vec![64, 1024] };
            let entry = Entry { plan, fill: Fill::Random(0.02) };
            let bytes = chunk(&entry, 3, 0, 7).expect("bytes");
            let mut values = vec![0.0; 64 * 1024];
            dtype.dequantise_row(Isa::scalar(), &bytes, &mut values).expect("values");
            let n = values.len() as f64;
            let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
            let square = values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / n;
            assert!(mean.abs() < 0.001, "{}: mean {mean}", dtype.name());
            let deviation = square.sqrt();
            assert!((0.018..0.022).contains(&deviation), "{}: {deviation}", dtype.name());
        }
    }
}
