//! The API server: one request, one answer, and the caller waits.
//!
//! Nothing is sent twice, except what the server has refused because it was busy: of a write that was sent again nobody could tell
//! whether it was done the first time, and a compare-and-swap lives by that. (The client's own habit of trying again is turned off.)

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use kube::api::{DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Client, Error};
use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

/// How long the API server may think about a question, its etcd included.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many objects an answer may hold: full blocks of 64 addresses are 20 KB each.
const PAGE: u32 = 500;

/// How often a list is begun anew because the server has forgotten the moment of which it was.
const LISTS: usize = 3;

/// Why there is no answer, in the server's own words.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// There is no such object (404).
    Missing(String),
    /// There is one already, or it is another than was said (409). **Nothing was done.**
    Conflict(String),
    /// The moment that was asked about is too long ago (410).
    Forgotten(String),
    /// Everything else. A write may have been done.
    Other(String),
}

impl Refusal {
    pub(crate) fn words(self) -> String {
        match self {
            Refusal::Missing(words)
            | Refusal::Conflict(words)
            | Refusal::Forgotten(words)
            | Refusal::Other(words) => words,
        }
    }
}

/// A client of the API server, and the runtime that it needs.
pub(crate) struct Server {
    /// Where it is.
    pub(crate) name: String,
    runtime: Runtime,
    client: Client,
}

/// A request, if it could be built.
type Sendable = Result<http::Request<Vec<u8>>, kube::core::request::Error>;

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    /// Of metadata that there are none of, the server says `null`.
    items: Option<Vec<Value>>,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

impl Server {
    /// The server of a kubeconfig, or of the pod that we run in. Nothing is connected yet.
    pub(crate) fn new(kubeconfig: Option<&Path>) -> Result<Server, String> {
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let (name, client) = runtime.block_on(async {
            let mut config = podwire_kubernetes::ClientOptions::from_kubeconfig(kubeconfig.map(Into::into))
                .config()
                .await
                .map_err(|error| error.to_string())?;
            config.default_retry = false;
            let name = config.cluster_url.to_string();
            let client = Client::try_from(config).map_err(|error| podwire_kubernetes::describe(&error))?;
            Ok::<_, String>((name.trim_end_matches('/').to_owned(), client))
        })?;
        Ok(Server { name, runtime, client })
    }

    /// Its name, and what others need to speak to it in their own way.
    pub(crate) fn into_parts(self) -> (String, Runtime, Client) {
        (self.name, self.runtime, self.client)
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Waits for something that takes as long as it takes.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// The plural names of a group's resources.
    pub(crate) fn resources(&self, group: &str) -> Result<Vec<String>, Refusal> {
        let list = self.ask(|| self.client.list_api_group_resources(group))?;
        Ok(list.resources.into_iter().map(|resource| resource.name).collect())
    }

    pub(crate) fn get(&self, path: &str, name: &str) -> Result<Value, Refusal> {
        self.ask(|| self.send(Request::new(path).get(name, &GetParams::default())))
    }

    pub(crate) fn post(&self, path: &str, object: &Value) -> Result<Value, Refusal> {
        let bytes = object.to_string().into_bytes();
        self.ask(|| self.send(Request::new(path).create(&PostParams::default(), bytes.clone())))
    }

    pub(crate) fn put(&self, path: &str, name: &str, object: &Value) -> Result<Value, Refusal> {
        let bytes = object.to_string().into_bytes();
        self.ask(|| self.send(Request::new(path).replace(name, &PostParams::default(), bytes.clone())))
    }

    /// Changes what `patch` names of an object, by way of its status.
    pub(crate) fn patch_status(&self, path: &str, name: &str, patch: &Value) -> Result<Value, Refusal> {
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        self.ask(|| self.send(Request::new(path).patch_subresource("status", name, &params, &patch)))
    }

    /// Deletes the very state of an object that was read.
    pub(crate) fn delete(&self, path: &str, object: &Value) -> Result<(), Refusal> {
        let text = |field: &str| object["metadata"][field].as_str().map(String::from);
        let state = Preconditions { uid: text("uid"), resource_version: text("resourceVersion") };
        let params = DeleteParams { preconditions: Some(state), ..DeleteParams::default() };
        let name = text("name").unwrap_or_default();
        self.ask(|| self.send::<Value>(Request::new(path).delete(&name, &params))).map(drop)
    }

    /// All objects, as they were at one moment, in pages.
    pub(crate) fn list(&self, path: &str, selector: Option<&str>) -> Result<Vec<Value>, Refusal> {
        let params = ListParams { label_selector: selector.map(String::from), ..ListParams::default() };
        self.list_by(params, |params| Request::new(path).list(params))
    }

    /// The metadata of all objects, without what is in them (PartialObjectMetadata).
    pub(crate) fn list_metadata(&self, path: &str) -> Result<Vec<Value>, Refusal> {
        self.list_by(ListParams::default(), |params| Request::new(path).list_metadata(params))
    }

    fn list_by(
        &self,
        params: ListParams,
        request: impl Fn(&ListParams) -> Sendable,
    ) -> Result<Vec<Value>, Refusal> {
        let mut left = LISTS;
        loop {
            left -= 1;
            match self.list_once(params.clone(), &request) {
                Err(Refusal::Forgotten(_)) if left > 0 => {}
                list => return list,
            }
        }
    }

    fn list_once(
        &self,
        mut params: ListParams,
        request: &impl Fn(&ListParams) -> Sendable,
    ) -> Result<Vec<Value>, Refusal> {
        let mut all = Vec::new();
        params.limit = Some(PAGE);
        loop {
            let page: Page = self.ask(|| self.send(request(&params)))?;
            all.extend(page.items.into_iter().flatten());
            params.continue_token = page.metadata.next.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(all);
            }
        }
    }

    async fn send<T: DeserializeOwned>(&self, request: Sendable) -> kube::Result<T> {
        self.client.request(request.map_err(Error::BuildRequest)?).await
    }

    /// Asks, and again after a while if the server is too busy: then it has not looked at the question.
    fn ask<T, A>(&self, question: impl Fn() -> A) -> Result<T, Refusal>
    where
        A: Future<Output = kube::Result<T>>,
    {
        let answer = async {
            loop {
                match question().await {
                    Err(Error::Api(status)) if status.code == 429 => {
                        let pause = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                        tokio::time::sleep(Duration::from_secs(pause.max(1).into())).await;
                    }
                    answer => return answer,
                }
            }
        };
        match self.runtime.block_on(async { tokio::time::timeout(PATIENCE, answer).await }) {
            Ok(answer) => answer.map_err(refusal),
            Err(_) => Err(Refusal::Other(format!("no answer within {} s", PATIENCE.as_secs()))),
        }
    }
}

fn refusal(error: Error) -> Refusal {
    let words = podwire_kubernetes::describe(&error);
    match error {
        Error::Api(status) => match status.code {
            404 => Refusal::Missing(words),
            409 => Refusal::Conflict(words),
            410 => Refusal::Forgotten(words),
            _ => Refusal::Other(words),
        },
        _ => Refusal::Other(words),
    }
}
