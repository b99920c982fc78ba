//! CHECK and STATUS: is an attachment as it was, and could another one be made?

use podwire_cni_plugin::Command;
use podwire_cni_spec::{code, NetworkList};
use serde_json::Map;

use crate::invoke::Call;
use crate::{Identity, Result, Runtime};

/// Fails for networks from before there was a CHECK.
pub(crate) fn require_check(list: &NetworkList) -> Result<()> {
    if list.version.has_check() {
        return Ok(());
    }
    let text =
        format!("configuration version {:?} does not support the CHECK command", list.version.as_str());
    let hint = "0.4.0 was the first to have it";
    Err(podwire_cni_spec::Error::new(code::INCOMPATIBLE_VERSION, text).with_details(hint).into())
}

impl Runtime<'_> {
    /// Asks the plugins, in order, whether the attachment is as ADD left it; the first that says no ends it.
    ///
    /// A network that switches it off is never asked. It came with version 0.4.0 of the spec; for older
    /// networks it is an error (code 1).
    pub fn check(&self, list: &NetworkList, identity: &Identity) -> Result<()> {
        require_check(list)?;
        if list.disable_check {
            return Ok(());
        }
        let record = self.cache.find(&list.name, identity)?;
        let identity = identity.clone().completed(record.as_ref());
        let result = record.map(|record| record.result_in(list.version)).transpose()?.flatten();
        let deadline = self.deadline();
        for step in self.chain(list, Command::Check)? {
            let config = step.config.request(list, result.as_ref(), &identity.capabilities);
            self.call(
                list,
                &step,
                Call { command: Command::Check, identity: Some(&identity), config, deadline },
            )?;
        }
        Ok(())
    }

    /// Asks the plugins whether an ADD could succeed now. The error has the code of the first that says no: 50
    /// means not now, 51 that running containers suffer too. Networks before version 1.1.0 have no such question.
    pub fn status(&self, list: &NetworkList) -> Result<()> {
        if !list.version.has_status() {
            return Ok(());
        }
        let deadline = self.deadline();
        for step in self.chain(list, Command::Status)? {
            let config = step.config.request(list, None, &Map::new());
            self.call(list, &step, Call { command: Command::Status, identity: None, config, deadline })?;
        }
        Ok(())
    }
}
