//! Pipelines: shaders as the driver compiled them, kept by their texts.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use crate::error::{self, Error, Result};

use super::device::{Gpu, ready};

/// A shader, compiled beside the work that comes before it, at the latest when it is dispatched.
pub struct Pipeline {
    text: String,
    /// Storage bindings
    bindings: usize,
    made: OnceLock<std::result::Result<wgpu::ComputePipeline, Error>>,
    /// Whether the device has run it
    pub ran: AtomicBool,
}

impl Gpu {
    /// The pipeline of a text with so many storage bindings.
    pub fn pipeline(&self, text: &str, bindings: usize) -> Arc<Pipeline> {
        let mut known = self.pipelines.lock();
        if let Some(pipeline) = known.get(text) {
            return pipeline.clone();
        }
        let (made, ran) = Default::default();
        let pipeline = Arc::new(Pipeline { text: text.into(), bindings, made, ran });
        known.insert(text.into(), pipeline.clone());
        drop(known);
        self.prepare(pipeline.clone());
        pipeline
    }

    /// The layout of so many storage bindings and the uniform buffer behind them.
    pub fn bind_layout(&self, bindings: usize) -> wgpu::BindGroupLayout {
        let mut known = self.layouts.lock();
        known.entry(bindings).or_insert_with(|| self.new_layout(bindings)).clone()
    }

    fn new_layout(&self, bindings: usize) -> wgpu::BindGroupLayout {
        let storage = wgpu::BufferBindingType::Storage { read_only: false };
        let entry = |binding: usize| wgpu::BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: if binding < bindings { storage } else { wgpu::BufferBindingType::Uniform },
                has_dynamic_offset: binding == bindings,
                min_binding_size: None,
            },
            count: None,
        };
        let entries: Vec<wgpu::BindGroupLayoutEntry> = (0..=bindings).map(entry).collect();
        let desc = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
        self.raw.create_bind_group_layout(&desc)
    }
}

impl Pipeline {
    /// What the driver made of it.
    pub fn compiled(&self, gpu: &Gpu) -> Result<&wgpu::ComputePipeline> {
        let made = self.made.get_or_init(|| self.compile(gpu));
        made.as_ref().map_err(Clone::clone)
    }

    fn compile(&self, gpu: &Gpu) -> Result<wgpu::ComputePipeline> {
        let scope = gpu.raw.push_error_scope(wgpu::ErrorFilter::Validation);
        let source = wgpu::ShaderSource::Wgsl(self.text.as_str().into());
        let desc = wgpu::ShaderModuleDescriptor { label: None, source };
        let module = gpu.raw.create_shader_module(desc);
        let bind = gpu.bind_layout(self.bindings);
        let layout = gpu.raw.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&bind)],
            immediate_size: 0,
        });
        let known = gpu.cache.as_ref().ok().and_then(|cache| cache.load(&self.text));
        let made = gpu.cache.as_ref().ok().map(|_| {
            let data = known.as_deref();
            let desc = wgpu::PipelineCacheDescriptor { label: None, data, fallback: true };
            // SAFETY: the data come from a file of this user's, whose head says that `get_data` gave
            // them for this adapter and driver, and whose checksum that they are whole; wgpu and
            // the driver look at heads of their own.
            unsafe { gpu.raw.create_pipeline_cache(&desc) }
        });
        let pipeline = gpu.raw.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            // No memory of a workgroup is read before it is written.
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: made.as_ref(),
        });
        match ready(scope.pop()).flatten() {
            Some(problem) => Err(error::internal(format!("a shader is refused: {problem}"))),
            None => {
                if let (Ok(cache), Some(made)) = (&gpu.cache, made)
                    && let Some(data) = made.get_data()
                    && known.as_ref() != Some(&data)
                {
                    cache.store(&self.text, &data);
                }
                Ok(pipeline)
            }
        }
    }
}
