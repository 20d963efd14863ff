"""Object detection on Pascal VOC: fine-tune Faster R-CNN on an encoder."""
