//! Connections on their way: the receiver listens and tells where, the sender connects, both ask the plugin.

use hawser_base::error::{Error, Result};
use hawser_base::log;
use hawser_plugin::net::{Connector, HANDLE_BYTES, Handle, Listener, Receiver, Sender};

use super::end::{Around, ConnectionKey};
use crate::bootstrap::Tag;

/// The sending end.
pub struct Dialing {
    /// The plugin's device.
    device: u32,
    /// With whether the receiver knows; none until it has said where it listens.
    connector: Option<(Box<dyn Connector>, bool)>,
}

impl Dialing {
    /// An end that connects as soon as its receiver says where.
    pub fn new(device: u32) -> Self {
        Self { device, connector: None }
    }

    /// True if the plugin has something to do.
    pub fn has_begun(&self) -> bool {
        self.connector.is_some()
    }

    /// One step on: whether anything moved, and the connection once it is there.
    pub fn step(
        &mut self,
        key: ConnectionKey,
        around: &Around<'_>,
    ) -> Result<(bool, Option<Box<dyn Sender>>)> {
        let Some((connector, told)) = &mut self.connector else {
            let tag = Tag::NetHandle.on_lane(key.lane);
            let Some(bytes) = around.bootstrap.take(key.peer, tag) else { return Ok((false, None)) };
            let handle: Handle = bytes.as_slice().try_into().map_err(|_| {
                let text = format!("a net handle of {} bytes, expected {HANDLE_BYTES}", bytes.len());
                Error::remote(text)
            })?;
            self.connector = Some((around.context.connect(self.device, &handle)?, false));
            return Ok((true, None));
        };
        // What the plugin says while it connects concerns this peer.
        let _span = log::enter_connection(around.bootstrap.rank(), key.peer);
        let sender = connector.poll()?;
        if !*told {
            around.tell(key, Tag::LinkCalling)?;
            *told = true;
        }
        Ok((sender.is_some(), sender))
    }
}

/// The receiving end.
pub struct Listening {
    /// None: the end is closed.
    listener: Option<Box<dyn Listener>>,
    /// The sender has begun to connect.
    is_called: bool,
}

impl Listening {
    /// An end whose sender is told where it listens.
    pub fn new(listener: Box<dyn Listener>) -> Self {
        Self { listener: Some(listener), is_called: false }
    }

    /// An end that is closed.
    pub fn nowhere() -> Self {
        Self { listener: None, is_called: false }
    }

    /// True if the plugin has something to do.
    pub fn has_begun(&self) -> bool {
        self.is_called
    }

    /// One step on: the connection once it is there. The sender waits to be told so.
    pub fn step(&mut self, key: ConnectionKey, around: &Around<'_>) -> Result<Option<Box<dyn Receiver>>> {
        self.is_called = self.is_called || around.was_told(key, Tag::LinkCalling);
        let Some(listener) = self.listener.as_mut().filter(|_| self.is_called) else { return Ok(None) };
        // What the plugin says while it accepts concerns this peer.
        let _span = log::enter_connection(around.bootstrap.rank(), key.peer);
        Ok(listener.accept()?)
    }
}
