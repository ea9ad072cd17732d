//! The inner loops of layer normalisation, each over one row.

use crate::cpu::dense::Real;
use crate::multiversion;

multiversion! {
    /// `y = (x − mean) · scale · weight + bias`.
    ///
    /// # Safety
    /// All have `n` elements, and `y` is apart from the others.
    pub unsafe fn affine[T](
        x: *const T,
        y: *mut T,
        n: usize,
        moments: [T; 2],
        weight: Option<&[T]>,
        bias: Option<&[T]>,
    )
    where [T: Real]
    {
        let [mean, scale] = moments;
        // SAFETY: by contract.
        let (x, y) =
            unsafe { (std::slice::from_raw_parts(x, n), std::slice::from_raw_parts_mut(y, n)) };
        let y = y.iter_mut().zip(x);
        match (weight, bias) {
            (None, None) => y.for_each(|(y, x)| *y = (*x - mean) * scale),
            (Some(w), None) => y.zip(w).for_each(|((y, x), w)| *y = (*x - mean) * scale * *w),
            (None, Some(b)) => y.zip(b).for_each(|((y, x), b)| *y = (*x - mean) * scale + *b),
            (Some(w), Some(b)) => {
                let parameters = w.iter().zip(b);
                y.zip(parameters).for_each(|((y, x), (w, b))| *y = (*x - mean) * scale * *w + *b);
            }
        }
    }

    /// Of `[x, g, …]` makes the normalised row, `g`, the weighted `g`, and the products of the
    /// first and the third; and of the first and `g`, and `g`, as lines.
    ///
    /// # Safety
    /// All have `n` elements.
    pub unsafe fn products[T](
        own: [*mut T; 4],
        lines: [*mut T; 2],
        n: usize,
        moments: [T; 2],
        weight: Option<&[T]>,
    )
    where [T: Real]
    {
        let [mean, scale] = moments;
        // SAFETY: by contract.
        unsafe {
            let row = |x: *mut T| std::slice::from_raw_parts_mut(x, n);
            let ([normal, g, weighted, products], [product, line]) = (own.map(row), lines.map(row));
            for i in 0..n {
                normal[i] = (normal[i] - mean) * scale;
                product[i] = g[i] * normal[i];
                line[i] = g[i];
            }
            match weight {
                Some(w) => (0..n).for_each(|i| weighted[i] = g[i] * w[i]),
                None => weighted.copy_from_slice(g),
            }
            for i in 0..n {
                products[i] = weighted[i] * normal[i];
            }
        }
    }

    /// `scale · (g − means₀ − normal · means₁)`, in place of `g`.
    ///
    /// # Safety
    /// Both have `n` elements.
    pub unsafe fn slopes[T](own: [*mut T; 2], n: usize, scale: T, means: [T; 2])
    where [T: Real]
    {
        // SAFETY: by contract.
        let [normal, g] = own.map(|x| unsafe { std::slice::from_raw_parts_mut(x, n) });
        for (g, normal) in g.iter_mut().zip(normal) {
            *g = scale * (*g - means[0] - *normal * means[1]);
        }
    }
}
