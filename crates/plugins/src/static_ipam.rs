//! static.
use cni::Attachment; use cni_plugin::{Plugin, Request, Result};
/// The plugin.
#[derive(Debug)] pub struct Static;
impl Plugin for Static {
    fn name(&self) -> &'static str { "static" }
    fn about(&self) -> &'static str { "static" }
    fn add(&self, _: &Request<'_>) -> Result<Attachment> { Err(cni::Error::internal("unwritten").into()) }
    fn del(&self, _: &Request<'_>) -> Result<()> { Ok(()) }
    fn check(&self, _: &Request<'_>) -> Result<()> { Ok(()) }
    fn gc(&self, _: &Request<'_>) -> Result<()> { Ok(()) }
    fn status(&self, _: &Request<'_>) -> Result<()> { Ok(()) }
}
