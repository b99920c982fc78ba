//! Stopping pods, and removing what is known of them.

use crate::checkpoint::{Checkpoint, Stage};
use crate::home::Home;
use crate::{attach, Error, PodName, Pods, Result};

/// What there was to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It was there, and is not any more.
    Now,
    /// There was nothing to do.
    Before,
}

impl Pods<'_> {
    /// Takes a pod's networks away, the last one first, and ends its process. It stays known until it is removed.
    ///
    /// It may be repeated, and needs nothing but the checkpoint: process, namespaces, config and plugins of ours may be
    /// gone. What fails keeps nothing else from being done, and can be tried again.
    pub fn stop(&self, name: &PodName) -> Result<Stopped> {
        let Some(home) = Home::find(&self.folder, name)? else { return Ok(Stopped::Before) };
        match home.checkpoint()? {
            Some(pod) if pod.stage == Stage::Stopped => Ok(Stopped::Before),
            Some(mut pod) => {
                self.take_apart(&home, &mut pod)?;
                pod.stage = Stage::Stopped;
                home.save(&pod)?;
                Ok(Stopped::Now)
            }
            // Whoever was to run it died before anything was made.
            None => home.remove().map(|()| Stopped::Now),
        }
    }

    /// Stops a pod and forgets it. With `force` it is forgotten even if a plugin fails or its checkpoint makes no sense:
    /// what that plugin holds, such as an address, is left to a GC.
    pub fn remove(&self, name: &PodName, force: bool) -> Result<Stopped> {
        let Some(home) = Home::find(&self.folder, name)? else { return Ok(Stopped::Before) };
        let stopped = home.checkpoint().and_then(|pod| match pod {
            Some(mut pod) if pod.stage != Stage::Stopped => self.take_apart(&home, &mut pod),
            _ => Ok(()),
        });
        match stopped {
            Err(error) if !force => Err(error),
            _ => home.remove().map(|()| Stopped::Now),
        }
    }

    /// Whatever of the pod is there goes. The checkpoint stays as it is: what it names may be there in part.
    pub(crate) fn take_apart(&self, home: &Home, pod: &mut Checkpoint) -> Result<()> {
        if pod.stage == Stage::Ready {
            pod.stage = Stage::Stopping;
            home.save(pod)?;
        }
        let mut errors = attach::detach(&self.runtime, pod);
        if let Some(process) = pod.process {
            let name = || pod.spec.name.clone();
            match process.end() {
                Ok(true) => {}
                Ok(false) => errors.push(Error::Endless { name: name(), pid: process.pid }),
                Err(error) => errors.push(Error::Pause { name: name(), why: format!("end it: {error}") }),
            }
        }
        Error::all(errors)
    }
}
