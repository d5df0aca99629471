//! `check clients`: the libraries that users' programs call an OpenAI-compatible server with.

use anyhow::{Context as _, Result};

use crate::check::{Figures, Scale};
use crate::fetch;
use crate::shell;

/// What calls, and the versions of all that it needs, below the root.
const CALLS: &str = "xtask/src/check/clients/calls.py";
const REQUIREMENTS: &str = "xtask/src/check/clients/requirements.txt";

/// The model that is served.
const MODEL: &str = "crates/oss-demo/data/demo.gguf";

/// What some of the packages need.
const PYTHON: (u32, u32) = (3, 11);

/// A Python that is young enough, and the packages, which are fetched where that is possible.
pub(crate) fn missing() -> Option<String> {
    let found = fetch::python_since(PYTHON).and_then(|_| fetch::packages("clients", REQUIREMENTS));
    found.err().map(|error| format!("{error:#}"))
}

/// Serves the demo model and calls it through each library.
pub(crate) fn run(scale: Scale) -> Result<Figures> {
    let packages = fetch::packages("clients", REQUIREMENTS)?;
    let server = shell::program("oss-server", scale.profile())?;
    let mut command = shell::command(fetch::python()?, &["-B", CALLS]);
    command.arg(server).arg(MODEL).env("PYTHONPATH", packages);
    serde_json::from_str(&shell::output(&mut command)?).context("what the calls printed")
}
