//! A model's files as one list of named tensors.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use oss_memory::file::{self, Advice, Map};
use oss_quant::{Dtype, Encoded};

use crate::error::{Error, Result, shown};
use crate::fingerprint::Fingerprint;
use crate::metadata::Metadata;
use crate::source::Source;
use crate::tensor::{Span, Tensor, TensorInfo, stored_bytes};
use crate::{fingerprint, gguf, packed, safetensors};

/// The largest side file that is read: the largest tokenizer.json takes some 30 MB.
const SIDE_FILE_LIMIT: u64 = 256 << 20;

/// Which format a container has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// One GGUF file, or the parts of a split one.
    Gguf,
    /// One safetensors file, or shards with an index.
    Safetensors,
    /// This project's own packed file: sections instead of tensors, see [`Container::packed`].
    Packed,
}

/// A model's files, opened: headers read and checked, contents mapped and untouched.
pub struct Container {
    kind: Kind,
    path: PathBuf,
    sources: Vec<Source>,
    /// The length of each file's header.
    header_bytes: Vec<usize>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    side: Side,
}

/// Where side files come from.
enum Side {
    /// The format keeps everything inside.
    None,
    /// From a folder.
    Folder(PathBuf),
    /// From memory.
    Memory(Vec<(String, Vec<u8>)>),
    /// From the sections of a packed file.
    Packed(packed::Reader),
}

/// What the readers of the formats hand over.
pub(crate) struct Parts {
    pub(crate) metadata: Metadata,
    pub(crate) tensors: Vec<TensorInfo>,
    pub(crate) header_bytes: Vec<usize>,
    pub(crate) sources: Vec<Source>,
}

impl Container {
    /// Opens a model: a GGUF file (any part of a split one), a packed file, a safetensors file, a
    /// `model.safetensors.index.json`, or a directory that holds `model.safetensors` or such an
    /// index. The format is told by the content, not by the name.
    ///
    /// Only headers are read: a file of 12 GB opens in milliseconds.
    ///
    /// # Errors
    /// [`Error::NotAModel`] when nothing of the kind is there, [`Error::File`] when the system
    /// refuses, and all others when the content is not sound.
    pub fn open(path: &Path) -> Result<Container> {
        if path.is_dir() {
            return safetensors::open_directory(path)
                .and_then(|parts| Container::new(Kind::Safetensors, path, folder(path), parts));
        }
        let beside = folder(path.parent().unwrap_or(Path::new("")));
        if path.to_str().is_some_and(|name| name.ends_with(safetensors::INDEX_SUFFIX)) {
            let parts = safetensors::open_index(path)?;
            return Container::new(Kind::Safetensors, path, beside, parts);
        }
        Container::of_source(Source::open(path)?, beside)
    }

    /// A container of bytes in memory, such as a model inside the program: a GGUF, safetensors or
    /// packed file. `name` takes the place of the path in errors; side files come from
    /// `side_files`, pairs of name and content.
    ///
    /// # Errors
    /// As for [`Container::open`].
    pub fn from_bytes(
        name: &str,
        bytes: impl Into<Cow<'static, [u8]>>,
        side_files: Vec<(String, Vec<u8>)>,
    ) -> Result<Container> {
        let source = Source::memory(name, bytes.into());
        source.check_fetched()?;
        Container::of_source(source, Side::Memory(side_files))
    }

    /// Opens one file of any format; `beside` is where a safetensors file's side files are.
    fn of_source(source: Source, beside: Side) -> Result<Container> {
        let path = source.path().to_path_buf();
        let kind = detect(&source)?;
        let (side, parts) = match kind {
            Kind::Gguf => (Side::None, gguf::open(source)?),
            Kind::Safetensors => (beside, safetensors::open_file(source)?),
            Kind::Packed => {
                let reader = packed::Reader::new(source.clone())?;
                let parts = Parts {
                    metadata: packed_metadata(&reader)?,
                    tensors: packed_tensors(&reader)?,
                    header_bytes: vec![reader.header_bytes()],
                    sources: vec![source],
                };
                (Side::Packed(reader), parts)
            }
        };
        Container::new(kind, &path, side, parts)
    }

    fn new(kind: Kind, path: &Path, side: Side, parts: Parts) -> Result<Container> {
        let Parts { metadata, tensors, header_bytes, sources } = parts;
        let mut index = HashMap::with_capacity(tensors.len());
        for (number, tensor) in tensors.iter().enumerate() {
            if let Some(other) = index.insert(tensor.name.clone(), number) {
                let other: &TensorInfo = &tensors[other];
                let got =
                    format!("a second one, first in {}", sources[other.data.file].path().display());
                let file = sources[tensor.data.file].path();
                return Err(Error::tensor(file, &tensor.name, "name", got, "every name once"));
            }
        }
        let path = path.to_path_buf();
        Ok(Container { kind, path, sources, header_bytes, metadata, tensors, index, side })
    }

    /// The format.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The sections of a packed file; `None` for the other formats.
    pub fn packed(&self) -> Option<&packed::Reader> {
        match &self.side {
            Side::Packed(reader) => Some(reader),
            _ => None,
        }
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The files with tensors, in the order of parts or shards.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.sources.iter().map(Source::path)
    }

    /// Whether a path leads to one of these files.
    pub fn has_file(&self, path: &Path) -> bool {
        self.files().any(|file| file::is_same(file, path))
    }

    /// When each of these files had last been written when it was opened; none for bytes in memory,
    /// or where the system does not say.
    pub fn modified(&self) -> impl Iterator<Item = Option<SystemTime>> {
        self.sources.iter().map(Source::modified)
    }

    /// Whether the contents are files, and not bytes in memory.
    pub fn is_in_files(&self) -> bool {
        self.sources.iter().all(Source::is_file)
    }

    /// Checks that the files still have the lengths that were mapped: to touch what has been cut
    /// off kills the process.
    ///
    /// # Errors
    /// Names the first file that has another length, or about which the system does not say.
    pub fn verify_len(&self) -> Result<()> {
        let mut maps = self.sources.iter().filter_map(Source::map);
        Ok(maps.try_for_each(Map::verify_len)?)
    }

    /// The bytes of all files together.
    pub fn file_bytes(&self) -> u64 {
        self.sources.iter().map(|source| source.bytes().len() as u64).sum()
    }

    /// A key for caches of what was made from this model: headers, sizes and samples of the
    /// contents, not the path. Reads headers and at most 64 pages of each file.
    pub fn fingerprint(&self) -> Fingerprint {
        let files = self.sources.iter().zip(&self.header_bytes);
        fingerprint::of(files.map(|(source, &header)| (source.bytes(), header)))
    }

    /// GGUF's key/value pairs (of a split file: the first part's); of a packed file: those of the
    /// GGUF file that it was made from. Empty otherwise.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// A file beside the tensors, such as `config.json` or `tokenizer.json`; of a packed file: the
    /// [`packed::BLOB`] section of that name. `None` when there is none of that name, or when the
    /// format (GGUF) keeps everything in its metadata.
    ///
    /// # Errors
    /// When the file is there and cannot be read, or is larger than 256 MiB.
    ///
    /// # Panics
    /// When `name` is more than a file name.
    pub fn side_file(&self, name: &str) -> Result<Option<Vec<u8>>> {
        assert!(is_plain_name(name), "side file: got {name:?}, expected a file name");
        match &self.side {
            Side::None => Ok(None),
            Side::Memory(files) => {
                Ok(files.iter().find(|(other, _)| other == name).map(|(_, bytes)| bytes.clone()))
            }
            Side::Packed(reader) => match reader.find(name) {
                Some(section) if section.kind == packed::BLOB => Ok(Some(blob(reader, name)?)),
                _ => Ok(None),
            },
            Side::Folder(folder) => {
                let path = folder.join(name);
                match path.exists() {
                    true => Ok(Some(file::read(&path, SIDE_FILE_LIMIT)?)),
                    false => Ok(None),
                }
            }
        }
    }

    /// All tensors in the order of the files.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.iter()
    }

    /// The tensor of that name.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] when there is none.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        self.find(name).ok_or_else(|| Error::MissingTensor {
            file: self.path.clone(),
            tensor: shown(name),
            count: self.tensors.len(),
        })
    }

    /// The tensor of that name, when there is one.
    pub fn find(&self, name: &str) -> Option<Tensor<'_>> {
        let info = &self.tensors[*self.index.get(name)?];
        let data = match info.scales {
            None => Encoded::Plain(self.span(info.data)),
            Some(scales) => {
                Encoded::Split { codes: self.span(info.data), scales: self.span(scales) }
            }
        };
        Some(Tensor { info, data })
    }

    fn span(&self, span: Span) -> &[u8] {
        &self.sources[span.file].bytes()[span.start..span.end]
    }

    /// Tells the system that the tensor's pages are not needed any more, as after packing them.
    /// They are read again when touched again.
    pub fn release(&self, name: &str) {
        let Some(&number) = self.index.get(name) else { return };
        let info = &self.tensors[number];
        for span in [Some(info.data), info.scales].into_iter().flatten() {
            // A system that refuses the hint changes speed, not results.
            let _hint = self.sources[span.file].advise(span.start..span.end, Advice::DontNeed);
        }
    }
}

impl std::fmt::Debug for Container {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Container")
            .field("kind", &self.kind)
            .field("path", &self.path)
            .field("files", &self.sources)
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

fn folder(path: &Path) -> Side {
    Side::Folder(path.to_path_buf())
}

/// Whether `name` names something in a folder and nothing above or below it.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let first = parts.next();
    matches!(first, Some(std::path::Component::Normal(part)) if part == name)
        && parts.next().is_none()
}

/// Tells the format by the content.
fn detect(source: &Source) -> Result<Kind> {
    let bytes = source.bytes();
    if bytes.starts_with(gguf::MAGIC) {
        return Ok(Kind::Gguf);
    }
    if bytes.starts_with(packed::MAGIC) || bytes.starts_with(packed::PARTIAL_MAGIC) {
        return Ok(Kind::Packed);
    }
    // A safetensors file has no magic: eight bytes of length, then a JSON object.
    let named = source.path().extension().is_some_and(|extension| extension == "safetensors");
    if named || bytes.get(8) == Some(&b'{') {
        return Ok(Kind::Safetensors);
    }
    let start: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let got = match start.is_empty() {
        true => "an empty file".to_string(),
        false => format!("a file that starts with {}", start.join(" ")),
    };
    let expected = "a GGUF, safetensors or packed file".to_string();
    Err(Error::NotAModel { file: source.path().to_path_buf(), got, expected })
}

/// A copy of a section that is no weights.
fn blob(reader: &packed::Reader, name: &str) -> Result<Vec<u8>> {
    let bytes = reader.section(name)?;
    if bytes.len() as u64 > SIDE_FILE_LIMIT {
        let expected = format!("at most {SIDE_FILE_LIMIT}");
        return Err(Error::section(reader.path(), name, "length", bytes.len(), expected));
    }
    Ok(bytes.to_vec())
}

/// The keys and values that a packed file keeps of the GGUF file it was made from.
fn packed_metadata(reader: &packed::Reader) -> Result<Metadata> {
    let section = reader.find(packed::METADATA);
    if section.filter(|section| section.kind == packed::BLOB).is_none() {
        return Ok(Metadata::empty(reader.path()));
    }
    let name = reader.path().display().to_string();
    let image = Source::memory(&name, blob(reader, packed::METADATA)?.into());
    Ok(gguf::parse(&image, 0)?.metadata)
}

/// The sections of a packed file that are tensors.
fn packed_tensors(reader: &packed::Reader) -> Result<Vec<TensorInfo>> {
    let mut tensors = Vec::new();
    for section in reader.sections().filter(|section| section.kind == packed::TENSOR) {
        let (file, name) = (reader.path(), &section.name);
        let wrong = |what: &str, got: String, expected: String| {
            Err(Error::tensor(file, name, what, got, expected))
        };
        let Ok(dtype) = Dtype::from_name(&section.format) else {
            let expected = "an element type".to_owned();
            return wrong("element type", shown(&section.format), expected);
        };
        let bytes = stored_bytes(file, name, dtype, &section.shape)?;
        if bytes != section.length {
            return wrong("length", section.length.to_string(), bytes.to_string());
        }
        let span = Span {
            file: 0,
            start: section.offset as usize,
            end: (section.offset + section.length) as usize,
        };
        let shape = section.shape.iter().map(|&dimension| dimension as usize).collect();
        tensors.push(TensorInfo { name: name.clone(), dtype, shape, data: span, scales: None });
    }
    Ok(tensors)
}
