"""MyXTTS. Networks are Keras's on TensorFlow, whatever the user has set for other projects."""

import os

# Keras reads its variables and KERAS_HOME/keras.json when it is imported. In this home is no file.
for _name in [name for name in os.environ if name.startswith("KERAS_")]:
    del os.environ[_name]
os.environ |= {"KERAS_BACKEND": "tensorflow", "KERAS_HOME": os.devnull}
