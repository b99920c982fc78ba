//! sbr.
use cni::Attachment; use cni_plugin::{Plugin, Request, Result};
/// The plugin.
#[derive(Debug)] pub struct Sbr;
impl Plugin for Sbr {
    fn name(&self) -> &'static str { "sbr" }
    fn about(&self) -> &'static str { "sbr" }
    fn add(&self, _: &Request<'_>) -> Result<Attachment> { Err(cni::Error::internal("unwritten").into()) }
    fn del(&self, _: &Request<'_>) -> Result<()> { Ok(()) }
    fn check(&self, _: &Request<'_>) -> Result<()> { Ok(()) }
    fn gc(&self, _: &Request<'_>) -> Result<()> { Ok(()) }
    fn status(&self, _: &Request<'_>) -> Result<()> { Ok(()) }
}
