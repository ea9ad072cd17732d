/** A digit drawn on a canvas, classified on the GPU by a program that wengert exported. */

import {Player, Program} from './player.js';

const SIDE = 28, INSIDE = 20;
const paper = document.getElementById('paper');
const ink = paper.getContext('2d', {willReadFrequently: true});
const said = document.getElementById('said');
const bars = [];
for (let digit = 0; digit < 10; digit++) {
  const row = document.getElementById('bars').appendChild(document.createElement('li'));
  row.innerHTML = `<span>${digit}</span><div><i></i></div>`;
  bars.push(row);
}

function clear() {
  ink.clearRect(0, 0, paper.width, paper.height);
  for (const row of bars) {
    row.className = '';
    row.querySelector('i').style.width = '0';
  }
  said.value = 'Use the mouse.';
  delete document.body.dataset.digit;
}

/**
 * The drawing as the digits of MNIST are: its longer side 20 pixels, in the middle of 28 × 28, and
 * ink is 1. Null where nothing is drawn.
 */
function image() {
  const {data, width, height} = ink.getImageData(0, 0, paper.width, paper.height);
  let [left, top, right, bottom] = [width, height, -1, -1];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      if (data[4 * (y * width + x) + 3] < 128) continue;
      [left, right] = [Math.min(left, x), Math.max(right, x)];
      [top, bottom] = [Math.min(top, y), Math.max(bottom, y)];
    }
  }
  if (right < 0) return null;
  const wide = right - left + 1, high = bottom - top + 1, scale = INSIDE / Math.max(wide, high);
  const small = new OffscreenCanvas(SIDE, SIDE).getContext('2d');
  small.imageSmoothingQuality = 'high';
  const [w, h] = [wide * scale, high * scale];
  small.drawImage(paper, left, top, wide, high, (SIDE - w) / 2, (SIDE - h) / 2, w, h);
  const pixels = small.getImageData(0, 0, SIDE, SIDE).data;
  return Float32Array.from({length: SIDE * SIDE}, (_, i) => pixels[4 * i + 3] / 255);
}

function show(probabilities) {
  const best = probabilities.indexOf(Math.max(...probabilities));
  bars.forEach((row, digit) => {
    row.className = digit === best ? 'best' : '';
    row.querySelector('i').style.width = `${100 * probabilities[digit]}%`;
  });
  said.value = `This is a ${best}, by ${(100 * probabilities[best]).toFixed(1)} %.`;
  document.body.dataset.digit = best;
}

async function main() {
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) throw new Error('this browser has no WebGPU');
  const program = await Program.load('digits.safetensors');
  const player = new Player(program, await adapter.requestDevice());

  let last = null;
  paper.onpointerdown = event => {
    paper.setPointerCapture(event.pointerId);
    last = [event.offsetX, event.offsetY];
    paper.onpointermove(event);
  };
  paper.onpointermove = event => {
    if (!last) return;
    ink.lineWidth = 22;
    ink.lineCap = ink.lineJoin = 'round';
    ink.strokeStyle = '#1d2733';
    ink.beginPath();
    ink.moveTo(...last);
    last = [event.offsetX, event.offsetY];
    ink.lineTo(...last);
    ink.stroke();
  };
  paper.onpointerup = paper.onpointercancel = async () => {
    last = null;
    const pixels = image();
    if (pixels) show(...await player.run([pixels]));
  };
  document.getElementById('clear').onclick = clear;
  clear();
  document.body.dataset.ready = 'yes';
}

main().catch(error => {
  said.value = error.message;
});
